// The page that Chromium opens: it starts and ends the workers, each with one session, and leaves when edgeopt does.

const workers = new Map();
const socket = new WebSocket(new URL("page", location.href.replace(/^http/, "ws")));

socket.onmessage = ({ data }) => {
  const { word, key } = JSON.parse(data);
  if (word === "start") workers.set(key, new Worker(`worker.js?key=${key}`, { type: "module" }));
  if (word === "end") {
    workers.get(key)?.terminate();
    workers.delete(key);
  }
};
socket.onopen = async () => {
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  const isSoftware = adapter?.info.isFallbackAdapter || adapter?.info.architecture === "swiftshader";
  const brands = await navigator.userAgentData?.getHighEntropyValues(["fullVersionList"]);
  const own = brands?.fullVersionList.find(({ brand }) => brand !== "Chromium" && !/not.?a.?brand/i.test(brand));
  const { brand, version } = own ?? brands?.fullVersionList.find(({ brand }) => brand === "Chromium") ?? {};
  const browser = brand ? `${brand} ${version}` : navigator.userAgent;
  socket.send(JSON.stringify({ browser, has_adapter: Boolean(adapter), has_gpu: Boolean(adapter) && !isSoftware }));
};
socket.onclose = () => window.close();
