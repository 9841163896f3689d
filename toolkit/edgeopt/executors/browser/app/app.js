// A bundle of edgeopt in the browser: manifest.json, a picture in, boxes drawn.
//
//   ?bundle=FOLDER/   the folder of manifest.json; without it, the page's own
//   ?picture=URL      a picture to begin with
//
// The engine is npm's onnxruntime-web, in a node_modules folder of the site: its root, or any folder down to this page.

const MODULES = { wasm: "ort.wasm.min.mjs", webgpu: "ort.webgpu.min.mjs" };
const OPTIONS = ["graphOptimizationLevel", "executionMode", "session.disable_quant_qdq"]; // others may name addresses
const EXECUTORS = ["browser", "onnxruntime"]; // a bundle for another device runs here too, in WebAssembly

const asked = new URLSearchParams(location.search);
const bundle = new URL((asked.get("bundle") ?? ".").replace(/\/?$/, "/"), location.href);
const SHOWN_PIXELS = 720; // of the longer side
const canvas = document.getElementById("canvas");
const chooser = document.getElementById("picture");
let ort;

async function fetched(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url.pathname ?? url}: ${response.status} ${response.statusText}`);
  return response;
}

/** Return the manifest of a bundle whose models hold their pre- and postprocessing. */
async function readManifest() {
  const manifest = await (await fetched(new URL("manifest.json", bundle))).json();
  if (manifest.targets)
    throw new Error("the bundle is for several targets: take one out with " +
      "edgeopt bundle BUNDLE --target NAME --out FOLDER");
  const parts = manifest.recipe.embedded ?? [];
  if (!parts.includes("preprocess") || !parts.includes("postprocess"))
    throw new Error("the bundle's models hold no pre- and postprocessing: make it with " +
      "edgeopt optimize MODEL --steps default,embed-preprocess,embed-postprocess");
  return manifest;
}

/** Return the address of the engine's modules. */
async function findEngine() {
  const folders = new URL(".", location.href).pathname.split("/").slice(1, -1);
  for (let depth = 0; depth <= folders.length; depth++) {
    const above = folders.slice(0, depth).map((folder) => `${folder}/`).join("");
    const engine = new URL(`/${above}node_modules/onnxruntime-web/dist/`, location.href).href;
    if ((await fetch(engine + MODULES.wasm, { method: "HEAD" })).ok) return engine;
  }
  throw new Error("the site has no engine: npm install onnxruntime-web in its folder");
}

/** Load the engine for a provider. More than one thread needs a server that sends the headers COOP and COEP. */
async function loadEngine(engine, provider, threads) {
  ort = await import(engine + MODULES[provider]);
  ort.env.wasm.wasmPaths = engine;
  const most = navigator.hardwareConcurrency || 1; // each takes memory, and a manifest may ask for a million
  ort.env.wasm.numThreads = crossOriginIsolated && threads >= 1 ? Math.min(Math.trunc(threads), most) : 1;
  ort.env.logLevel = "error";
}

/** Open the artefacts in their order, until one opens. */
async function openFirst(manifest) {
  const engine = await findEngine();
  for (const artefact of manifest.artefacts) {
    try {
      if (!EXECUTORS.includes(artefact.executor)) throw new Error("made for another engine");
      const url = new URL(artefact.file, bundle); // `\\\\host\\file` and `data:,x` are addresses too
      if (url.href !== bundle.href + artefact.file) throw new Error("it lies outside the bundle");
      const model = await (await fetched(url)).arrayBuffer();
      if (model.byteLength !== artefact.size_bytes) throw new Error("not as long as the manifest says");
      const isOurs = artefact.executor === "browser";
      const provider = isOurs ? artefact.providers[0] : "wasm";
      await loadEngine(engine, provider, artefact.threads || 1);
      const options = isOurs ? sessionOptions(artefact.options) : {};
      return await ort.InferenceSession.create(model, { ...options, executionProviders: [provider] });
    } catch (error) {
      console.warn(`${artefact.file} not used: ${error.message ?? error}`);
    }
  }
  throw new Error("no model of the bundle opens here");
}

/** Return options as onnxruntime-web takes them: what begins with `session.` is an entry of ONNX Runtime's own. */
function sessionOptions(options) {
  const entries = Object.entries(options).filter(([name]) => OPTIONS.includes(name));
  const own = entries.filter(([name]) => name.startsWith("session."));
  return {
    ...Object.fromEntries(entries.filter(([name]) => !name.startsWith("session."))),
    extra: { session: Object.fromEntries(own.map(([name, value]) => [name.slice("session.".length), value])) },
  };
}

/** Return a picture as (height, width, 3) uint8: blue, green, red. */
function frameOf(bitmap) {
  const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  const rgba = context.getImageData(0, 0, bitmap.width, bitmap.height).data;
  const pixels = new Uint8Array((rgba.length / 4) * 3);
  for (let from = 0, to = 0; from < rgba.length; from += 4, to += 3) {
    pixels[to] = rgba[from + 2];
    pixels[to + 1] = rgba[from + 1];
    pixels[to + 2] = rgba[from];
  }
  return new ort.Tensor("uint8", pixels, [bitmap.height, bitmap.width, 3]);
}

/** Return the answer as `edgeopt run --json` writes it. */
function answerOf(manifest, outputs) {
  const names = manifest.recipe.class_names;
  const found = Array.from(outputs.scores.data, (score, i) => {
    const index = Number(outputs.classes.data[i]);
    return { class: names[index] ?? `class ${index}`, index, score: Math.round(score * 1e4) / 1e4 };
  });
  if (manifest.recipe.task !== "detection") return { classes: found };
  const side = (value) => Math.round(value * 100) / 100;
  return {
    detections: found.map(({ class: label, score }, i) => ({
      box: Array.from(outputs.boxes.data.slice(4 * i, 4 * i + 4), side), score, class: label,
    })),
  };
}

function show(bitmap, answer) {
  const scale = SHOWN_PIXELS / Math.max(bitmap.width, bitmap.height);
  [canvas.width, canvas.height] = [bitmap.width * scale, bitmap.height * scale];
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  context.lineWidth = 2;
  context.font = "14px system-ui, sans-serif";
  for (const { box, score, class: label } of (answer.detections ?? []).toReversed()) {
    const [left, top, right, bottom] = box.map((side) => side * scale);
    const text = `${label} ${score.toFixed(2)}`;
    const above = Math.max(top, 18);
    context.strokeStyle = context.fillStyle = "#0a7d5a";
    context.strokeRect(left, top, right - left, bottom - top);
    context.fillRect(left - 1, above - 18, context.measureText(text).width + 8, 18);
    context.fillStyle = "#fff";
    context.fillText(text, left + 3, above - 4);
  }
  const rows = (answer.detections ?? answer.classes).map((one) =>
    [one.class, one.score.toFixed(3), (one.box ?? []).map((side) => side.toFixed(0)).join(", ")]);
  document.getElementById("table").replaceChildren(...[["class", "score", "box"], ...rows].map((cells, row) => {
    const line = document.createElement("tr");
    line.append(...cells.map((text) => Object.assign(document.createElement(row ? "td" : "th"), { textContent: text })));
    return line;
  }));
  document.getElementById("answer").textContent = JSON.stringify(answer);
}

function say(text, failed = false) {
  const status = document.getElementById("status");
  status.textContent = text;
  status.classList.toggle("failed", failed);
}

async function main() {
  const manifest = await readManifest();
  const session = await openFirst(manifest);
  const answer = async (blob) => {
    const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
    const frame = frameOf(bitmap);
    const began = performance.now();
    const outputs = await session.run({ frame });
    const took = performance.now() - began;
    show(bitmap, answerOf(manifest, outputs));
    say(`${manifest.recipe.name}: ${outputs.scores.data.length} found in ${took.toFixed(0)} ms`);
  };
  const taken = (blob) => answer(blob).catch((error) => say(String(error.message ?? error), true));
  chooser.disabled = false;
  chooser.addEventListener("change", () => chooser.files[0] && taken(chooser.files[0]));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) taken(event.dataTransfer.files[0]);
  });
  say(`${manifest.recipe.name} is ready.`);
  if (asked.get("picture")) await answer(await (await fetched(new URL(asked.get("picture"), location.href))).blob());
}

main().catch((error) => say(String(error.message ?? error), true));
