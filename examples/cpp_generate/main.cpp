// A language model's bundle of edgeopt in C++: tokens in, the likeliest tokens out, each as soon as it is known.
//
//   edgeopt_generate BUNDLE COUNT TOKEN...
//
// The prompt runs first, then each token alone: the cache holds keys and values of all before it. In a bundle of two
// graphs over one cache, one computes the prompt into it, and the other each token behind. Texts become tokens by the
// tokenizer.json in the bundle, with a library for it (README.md).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <onnxruntime_cxx_api.h>

using nlohmann::json;
namespace fs = std::filesystem;

json read_manifest(const fs::path& bundle) {
  std::ifstream file(bundle / "manifest.json");
  if (!file) throw std::runtime_error(bundle.string() + " holds no manifest.json");
  json manifest = json::parse(file);
  if (manifest.contains("targets"))
    throw std::runtime_error(
        bundle.string() + " is for several targets: take one out with "
        "edgeopt bundle BUNDLE --target NAME --out FOLDER");
  const json& recipe = manifest.at("recipe");
  if (recipe.at("task") != "generation" || recipe.at("generation").value("encoder", "") != "")
    throw std::runtime_error("the bundle is not that of a language model, but of " + recipe.at("task").dump());
  if (recipe.contains("image") && recipe.at("image").value("encoder", "") != "")
    throw std::runtime_error("the bundle is that of a language model that sees pictures, which this program does not");
  return manifest;
}

void require_length(const fs::path& bundle, const json& named) {
  const std::string file = named.at("file");
  if (fs::path(file).filename() != file) throw std::runtime_error(file + " lies outside the bundle");
  if (fs::file_size(bundle / file) != named.at("size_bytes").get<uintmax_t>())
    throw std::runtime_error(file + " is not as long as the manifest says");
}

// How often each op stands in the graph of an ONNX file (protobuf), which is read without its weights.
std::map<std::string, size_t> ops_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string damaged = path.string() + " is no ONNX model, or is damaged";
  const auto number = [&] {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const int byte = file.get();
      if (byte < 0) throw std::runtime_error(damaged);
      value |= uint64_t(byte & 127) << shift;
      if (byte < 128) return value;
    }
    throw std::runtime_error(damaged);
  };
  const uint64_t fields[] = {7, 1, 4};  // the model's graph, its nodes, their ops
  std::map<std::string, size_t> ops;
  const std::function<void(size_t, uint64_t)> read = [&](size_t depth, uint64_t end) {
    while (uint64_t(file.tellg()) < end) {
      const uint64_t key = number(), kind = key & 7;
      const uint64_t length = kind == 0 ? (number(), 0) : kind == 1 ? 8 : kind == 5 ? 4 : number();
      const uint64_t begin = uint64_t(file.tellg());
      if ((kind > 2 && kind != 5) || length > end - begin) throw std::runtime_error(damaged);
      if (kind != 2 || key >> 3 != fields[depth]) {
        file.seekg(std::streamoff(begin + length));
      } else if (depth < 2) {
        read(depth + 1, begin + length);
      } else {
        std::string op(length, ' ');
        file.read(op.data(), std::streamsize(length));
        ++ops[op];
      }
    }
  };
  read(0, fs::file_size(path));
  return ops;
}

const std::string kPast = "past_key_values.", kLast = "logits_to_keep";

struct Graph {
  Ort::Session session;
  std::vector<std::string> inputs;  // which of input_ids, attention_mask and position_ids it takes
  bool takes_last = false;          // whether it computes the logits of the last tokens alone where it is asked to
  bool writes_in_place = false;     // whether it writes what is new behind the past, in the same memory
  bool runs_even = false;           // whether runs of a prompt take an even number of tokens
};

// ONNX Runtime maps a file of weights into memory: what two graphs read in the same file is there once.
Graph open_graph(Ort::Env& env, const fs::path& bundle, const json& graph, const json& settings) {
  require_length(bundle, graph);
  if (const json weights = graph.value("weights", json()); !weights.is_null()) require_length(bundle, weights);
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(settings.at("threads"));
  options.SetInterOpNumThreads(1);
  for (const auto& [key, value] : settings.at("options").items())
    options.AddConfigEntry(key.c_str(), value.get<std::string>().c_str());
  const fs::path file = bundle / graph.at("file").get<std::string>();
  Graph opened{Ort::Session(env, file.c_str(), options), {}};
  Ort::AllocatorWithDefaultOptions allocator;
  size_t pasts = 0;
  for (size_t i = 0; i < opened.session.GetInputCount(); ++i) {
    const std::string name = opened.session.GetInputNameAllocated(i, allocator).get();
    if (name == "input_ids" || name == "attention_mask" || name == "position_ids")
      opened.inputs.push_back(name);
    else if (name.rfind(kPast, 0) == 0)
      ++pasts;
    else
      throw std::runtime_error("this program does not feed the model's input " + name);
  }
  for (size_t i = 0; i < opened.session.GetOverridableInitializerCount(); ++i)
    opened.takes_last |= opened.session.GetOverridableInitializerNameAllocated(i, allocator).get() == kLast;

  // as edgeopt/executors/onnxruntime decides: products that round each row by itself sum the odd row at the end of a
  // run otherwise than pairs, but ops that round all rows of a run on one grid gain nothing by pairs
  const auto ops = ops_in(file);
  const auto has = [&](const std::vector<std::string>& some) {
    return std::any_of(some.begin(), some.end(), [&](const std::string& op) { return ops.count(op) > 0; });
  };
  const auto attention = ops.find("GroupQueryAttention");
  opened.writes_in_place = attention != ops.end() && 2 * attention->second == pasts;
  opened.runs_even = opened.writes_in_place && has({"MatMulNBits", "QLinearMatMul", "QMoE"}) &&
                     !has({"MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLinear"});
  return opened;
}

struct Model {
  Graph tokens;
  std::optional<Graph> prompts;  // where another graph computes them
};

// How sessions that are made while this lives compute attention: in tiles, or in one piece, as the bundle was measured.
// ONNX Runtime reads that in the environment of the process, so that one bundle is opened at a time, and what was
// written there is taken out again. What the user wrote there stands.
class Attention {
 public:
  explicit Attention(bool in_tiles) : one_at_a_time_(mutex_) {
    is_set_ = !in_tiles && std::getenv(kVariable) == nullptr;
    if (!is_set_) return;
#ifdef _WIN32
    _putenv_s(kVariable, "1");
#else
    setenv(kVariable, "1", 0);
#endif
  }
  ~Attention() {
    if (!is_set_) return;
#ifdef _WIN32
    _putenv_s(kVariable, "");
#else
    unsetenv(kVariable);
#endif
  }
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

 private:
  static constexpr const char* kVariable = "ORT_GQA_DISABLE_FLASH_ATTENTION";
  static inline std::mutex mutex_;
  std::lock_guard<std::mutex> one_at_a_time_;
  bool is_set_ = false;
};

Model open_model(Ort::Env& env, const fs::path& bundle, const json& manifest) {
  const json& generation = manifest.at("recipe").at("generation");
  const json& tokens = manifest.at("artefacts").at(0);
  if (tokens.at("executor") != "onnxruntime")
    throw std::runtime_error("tokens of this bundle run on " + tokens.at("executor").get<std::string>() +
                             ", which this program has not: run edgeopt optimize where that is not installed");
  const Attention attention(generation.value("flash_attention", true));
  Model model{open_graph(env, bundle, tokens, tokens), std::nullopt};
  const std::string file = generation.value("prefill", "");
  if (file.empty()) return model;
  for (const json& part : manifest.at("parts")) {
    if (part.at("file") != file) continue;
    const bool is_here = part.at("executor") == "onnxruntime";
    if (!is_here)
      std::cerr << file << " was measured on " << part.at("executor").get<std::string>()
                << ": ONNX Runtime computes prompts, slower\n";
    model.prompts = open_graph(env, bundle, part, is_here ? part : tokens);
  }
  if (!model.prompts) throw std::runtime_error("the manifest does not name " + file);
  if (!model.tokens.writes_in_place || !model.prompts->writes_in_place)
    throw std::runtime_error("the graph of prompts and that of tokens share no cache");
  return model;
}

size_t bytes_of(ONNXTensorElementDataType type) {
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) return 4;
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 || type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16) return 2;
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 || type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) return 1;
  throw std::runtime_error("this program does not know the type of the model's cache");
}

// The likeliest token: NaN is never chosen.
int64_t likeliest(const float* logits, int64_t count) {
  int64_t best = -1;
  for (int64_t i = 0; i < count; ++i)
    if (!std::isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
  if (best < 0) throw std::runtime_error("no token can be chosen: all logits of the model are NaN");
  return best;
}

// One text: it takes the next tokens and gives the likeliest one behind them.
class Text {
 public:
  // What is new is written behind the past in the same memory, which is reserved for `most` tokens. A single graph may
  // be of a form that cannot, so that each run is given the cache that the one before it made.
  Text(Model& model, const json& generation, int64_t most)
      : model_(model), chunk_(generation.value("chunk", int64_t{0})), runs_even_(model.tokens.runs_even) {
    is_in_place_ = model.tokens.writes_in_place;
    Ort::AllocatorWithDefaultOptions allocator;
    for (size_t i = 0; i < model.tokens.session.GetInputCount(); ++i) {
      const std::string name = model.tokens.session.GetInputNameAllocated(i, allocator).get();
      if (name.rfind(kPast, 0) != 0) continue;
      const Ort::TypeInfo type = model.tokens.session.GetInputTypeInfo(i);
      const auto info = type.GetTensorTypeAndShapeInfo();
      std::vector<int64_t> shape = info.GetShape();  // texts, heads, tokens, numbers of a head
      shape.at(0) = 1;
      shape.at(2) = is_in_place_ ? most + 1 : 0;  // a run of an even number may take one more
      if (shape.at(3) < 0) shape.at(3) = generation.at("head");
      past_.push_back(Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), info.GetElementType()));
      const size_t count = past_.back().GetTensorTypeAndShapeInfo().GetElementCount();
      if (count > 0) std::memset(past_.back().GetTensorMutableRawData(), 0, count * bytes_of(info.GetElementType()));
      past_names_.push_back(name);
      present_names_.push_back("present." + name.substr(kPast.size()));
    }
  }

  int64_t next(const std::vector<int64_t>& tokens) {
    Graph* prompts = model_.prompts ? &*model_.prompts : nullptr;
    const bool is_prompt = said_ == 0 || tokens.size() > 1;
    // a graph of prompts has no logits: the last token runs on the other one
    const int64_t count = is_prompt ? int64_t(tokens.size()) - (prompts ? 1 : 0) : 0;
    const int64_t parts = chunk_ > 0 ? (count + chunk_ - 1) / chunk_ : std::min<int64_t>(count, 1);
    // parts are of nearly the same length, but whole chunks where a token's numbers depend on those that run with it
    const bool are_chunks = prompts && !prompts->runs_even;
    int64_t token = -1;
    for (int64_t i = 0, begin = 0; i < parts; ++i) {
      const int64_t end = are_chunks && chunk_ > 0 ? std::min((i + 1) * chunk_, count) : (i + 1) * count / parts;
      const std::vector<int64_t> part(tokens.begin() + begin, tokens.begin() + end);
      const bool is_even = prompts ? prompts->runs_even : runs_even_;
      token = run(prompts ? *prompts : model_.tokens, part, is_even, !prompts, i + 1 == parts);
      begin = end;
    }
    if (is_prompt && !prompts) return token;
    return run(model_.tokens, {tokens.back()}, false, false, true);
  }

 private:
  // Runs the next tokens. Of a prompt the logits behind its last token suffice. Returns the likeliest token behind them
  // where that is asked for and the graph has logits, else -1.
  int64_t run(Graph& graph, std::vector<int64_t> tokens, bool is_even, bool is_last_enough, bool is_asked) {
    const int64_t before = said_;
    const bool is_padded = is_even && tokens.size() % 2 == 1;
    if (is_padded) tokens.push_back(tokens.back());  // what follows is written over it
    std::vector<int64_t> positions(tokens.size()), mask(size_t(before) + tokens.size(), 1);
    std::iota(positions.begin(), positions.end(), before);
    std::vector<int64_t> last{is_even ? std::min<int64_t>(2, int64_t(tokens.size())) : 1};

    Ort::IoBinding binding(graph.session);
    const auto bind = [&](const std::string& name, std::vector<int64_t>& held, const std::vector<int64_t>& shape) {
      binding.BindInput(name.c_str(), Ort::Value::CreateTensor<int64_t>(memory_, held.data(), held.size(), shape.data(),
                                                                        shape.size()));
    };
    for (const std::string& name : graph.inputs) {
      std::vector<int64_t>& held = name == "input_ids" ? tokens : name == "attention_mask" ? mask : positions;
      bind(name, held, {1, int64_t(held.size())});
    }
    if (is_last_enough && graph.takes_last) bind(kLast, last, {1});
    for (size_t i = 0; i < past_.size(); ++i) {
      binding.BindInput(past_names_[i].c_str(), past_[i]);
      if (is_in_place_)
        binding.BindOutput(present_names_[i].c_str(), past_[i]);
      else
        binding.BindOutput(present_names_[i].c_str(), memory_);
    }
    const bool has_logits = &graph == &model_.tokens;
    if (has_logits) binding.BindOutput("logits", memory_);
    graph.session.Run(Ort::RunOptions{nullptr}, binding);
    std::vector<Ort::Value> outputs = binding.GetOutputValues();  // in the order in which they were bound
    for (size_t i = 0; i < past_.size() && !is_in_place_; ++i) past_[i] = std::move(outputs[i]);
    said_ = before + int64_t(tokens.size()) - is_padded;
    if (!has_logits) return -1;

    const auto info = outputs.back().GetTensorTypeAndShapeInfo();
    if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
      throw std::runtime_error("this program reads logits of float32 alone");
    const int64_t rows = info.GetShape().at(1), width = info.GetShape().at(2);
    if (is_padded && rows == 1) {  // those behind the copy: the head reads the last token alone
      runs_even_ = false;
      said_ = before;
      tokens.pop_back();
      return run(graph, tokens, false, is_last_enough, is_asked);
    }
    return is_asked ? likeliest(outputs.back().GetTensorData<float>() + (rows - 1 - is_padded) * width, width) : -1;
  }

  Model& model_;
  const int64_t chunk_;  // tokens of a prompt that run at once; 0: all
  bool runs_even_;       // as the graph of tokens has it, until its head is known to read the last token alone
  bool is_in_place_ = false;
  Ort::MemoryInfo memory_ = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<std::string> past_names_, present_names_;
  std::vector<Ort::Value> past_;
  int64_t said_ = 0;
};

int64_t number(const std::string& text) {
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos)
    throw std::runtime_error("'" + text + "' is not a whole number below a billion");
  return std::stoll(text);
}

int main(int count, char** arguments) {
  if (count < 4) {
    std::cerr << "usage: edgeopt_generate BUNDLE COUNT TOKEN...\n";
    return 2;
  }
  try {
    const fs::path bundle = arguments[1];
    const json manifest = read_manifest(bundle);
    const json& generation = manifest.at("recipe").at("generation");
    const auto ends = generation.at("end").get<std::vector<int64_t>>();
    auto tokens = generation.at("begin").get<std::vector<int64_t>>();  // stands before every prompt
    for (int i = 3; i < count; ++i) tokens.push_back(number(arguments[i]));
    const int64_t context = generation.at("context"), prompt = int64_t(tokens.size());
    if (prompt >= context)
      throw std::runtime_error("a prompt of " + std::to_string(prompt) + " tokens leaves no room in the model's " +
                               std::to_string(context));
    const int64_t most = std::min<int64_t>(number(arguments[2]), context - prompt);

    Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "edgeopt_generate");
    Model model = open_model(env, bundle, manifest);
    Text text(model, generation, prompt + most);
    for (int64_t i = 0; i < most; ++i) {
      const int64_t token = text.next(tokens);
      if (std::find(ends.begin(), ends.end(), token) != ends.end()) break;
      std::cout << token << std::endl;  // an app shows it at once
      tokens = {token};
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "edgeopt_generate: " << error.what() << '\n';
    return 1;
  }
}
