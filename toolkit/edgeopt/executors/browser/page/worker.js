// One session of onnxruntime-web: it does what each message of the page says, and sends the answer to edgeopt.
//
// A message is what edgeopt/system/processes/messages.py writes: 8 bytes with the length of the head (little-endian),
// the head as JSON, the bytes of the arrays.

const key = new URLSearchParams(location.search).get("key");
const HEAD_BYTES = 8;
const MOST_BYTES = 2 ** 30; // Chromium sends no message of 2 GB, and says nothing
const FREE = 2 ** 31; // a dimension without a name is -1 in 32 bits without a sign
const EMPTY = new Uint8Array(); // no model: refused when the engine is ready
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array, int16: Int16Array,
  uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
  float16: globalThis.Float16Array ?? Uint16Array,
};

let ort, session, device;
let feeds, results;
const lines = []; // what the engine printed since the session was created

function read(buffer) {
  const bytes = Number(new DataView(buffer).getBigUint64(0, true));
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, HEAD_BYTES, bytes)));
  let at = HEAD_BYTES + bytes;
  const arrays = head.arrays.map(([name, type, dims]) => {
    const Type = ARRAYS[type];
    const size = dims.reduce((product, side) => product * side, 1) * Type.BYTES_PER_ELEMENT;
    const data = new Type(buffer.slice(at, at + size)); // a typed array begins at a multiple of its element's size
    at += size;
    return { name, type, dims, data };
  });
  return { values: head.values, arrays };
}

function write(values, arrays = []) {
  const head = new TextEncoder().encode(
    JSON.stringify({ values, arrays: arrays.map(({ name, type, dims }) => [name, type, dims]) }));
  const size = arrays.reduce((sum, { data }) => sum + data.byteLength, HEAD_BYTES + head.byteLength);
  if (size > MOST_BYTES) throw new Error(`the outputs take ${size} bytes, more than the 1 GB that a message carries`);
  const message = new Uint8Array(size); // in one piece: a Blob's parts would go through another process
  new DataView(message.buffer).setBigUint64(0, BigInt(head.byteLength), true);
  message.set(head, HEAD_BYTES);
  let at = HEAD_BYTES + head.byteLength;
  for (const { data } of arrays) {
    message.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return message;
}

/** Fetch the engine and the model and create the session; each part with its milliseconds. */
async function open({ model, engine, threads, options, provider, gpuOutputs, logs }) {
  const began = performance.now();
  ort = await import(`./ort/${engine}`);
  ort.env.wasm.wasmPaths = new URL("./ort/", location.href).href;
  ort.env.wasm.numThreads = threads;
  ort.env.logLevel = logs ? "verbose" : "error";
  await ort.InferenceSession.create(EMPTY, { executionProviders: [provider] }).catch(() => {}); // compiles WebAssembly
  const compiled = performance.now();
  const bytes = new Uint8Array(await (await fetch(`models/${model}`)).arrayBuffer());
  const fetched = performance.now();
  lines.length = 0;
  session = await ort.InferenceSession.create(bytes, {
    ...sessionOptions(options),
    executionProviders: [provider],
    ...(gpuOutputs ? { preferredOutputLocation: "gpu-buffer" } : {}),
    ...(logs ? { logSeverityLevel: 0, logVerbosityLevel: 0 } : {}),
  });
  const created = performance.now();
  device = provider === "webgpu" ? await ort.env.webgpu.device : undefined;
  return {
    inputs: session.inputMetadata.map(described),
    outputs: session.outputMetadata.map(described),
    compile_ms: compiled - began,
    fetch_ms: fetched - compiled,
    create_ms: created - fetched,
    is_software: Boolean(device) && isSoftware(device.adapterInfo ?? {}),
    lines: logs ? lines.slice() : [],
  };
}

/** Return name, type and shape of a tensor; null stands for a free dimension. What is no tensor has no type. */
function described({ name, isTensor, type, shape }) {
  const isKnown = (side) => typeof side === "number" && side < FREE;
  return { name, type: isTensor ? type : "", shape: (shape ?? []).map((side) => (isKnown(side) ? side : null)) };
}

/** Return options as onnxruntime-web takes them: what begins with `session.` is an entry of ONNX Runtime's own. */
function sessionOptions(options) {
  const entries = Object.entries(options);
  const own = entries.filter(([name]) => name.startsWith("session."));
  return {
    ...Object.fromEntries(entries.filter(([name]) => !name.startsWith("session."))),
    extra: { session: Object.fromEntries(own.map(([name, value]) => [name.slice("session.".length), value])) },
  };
}

/** Return whether software computes in the place of a GPU. */
function isSoftware({ isFallbackAdapter, architecture }) {
  return Boolean(isFallbackAdapter) || architecture === "swiftshader";
}

/** Make tensors of the arrays; a processor reads them where they are. */
function upload(arrays) {
  const began = performance.now();
  feeds = Object.fromEntries(arrays.map(({ name, type, dims, data }) => [name, new ort.Tensor(type, data, dims)]));
  return performance.now() - began;
}

async function execute() {
  const began = performance.now();
  results = await session.run(feeds);
  if (device) await device.queue.onSubmittedWorkDone();
  return performance.now() - began;
}

async function download() {
  const began = performance.now();
  const arrays = [];
  for (const name of session.outputNames) {
    const tensor = results[name];
    const data = tensor.location === "cpu" ? tensor.data : await tensor.getData(true);
    arrays.push({ name, type: tensor.type, dims: tensor.dims, data });
  }
  return [performance.now() - began, arrays];
}

const HANDLERS = {
  open: async ({ values }) => write(await open(values)),
  upload: ({ arrays }) => write({ ms: upload(arrays) }),
  execute: async () => write({ ms: await execute() }),
  download: async () => {
    const [ms, arrays] = await download();
    return write({ ms }, arrays);
  },
};

for (const level of ["log", "debug", "info", "warn", "error"]) console[level] = (...words) => lines.push(words.join(" "));

async function answer(data) {
  try {
    const message = read(data);
    return await HANDLERS[message.values.do](message);
  } catch (error) {
    return write({ error: String(error?.message ?? error) });
  }
}

const socket = new WebSocket(new URL(`workers/${key}`, location.href.replace(/^http/, "ws")));
socket.binaryType = "arraybuffer";
socket.onmessage = async ({ data }) => socket.send(await answer(data));
socket.onclose = () => self.close(); // edgeopt has ended
