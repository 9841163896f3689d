// A language model's bundle of edgeopt in C++: tokens in, the likeliest tokens out, each as soon as it is known.
//
//   edgeopt_generate BUNDLE COUNT TOKEN...
//
// The prompt runs first, then each token alone: the cache holds keys and values of all before it. In a bundle of two
// graphs over one cache, one computes the prompt into it, and the other each token behind. Texts become tokens by the
// tokenizer.json in the bundle, with a library for it (README.md).

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
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

// A graph of the model, and which of input_ids, attention_mask and position_ids it takes.
struct Graph {
  Ort::Session session;
  std::vector<std::string> inputs;
};

const std::string kPast = "past_key_values.";

// ONNX Runtime maps a file of weights into memory: what two graphs read in the same file is there once.
Graph open_graph(Ort::Env& env, const fs::path& bundle, const json& graph, const json& settings) {
  require_length(bundle, graph);
  if (const json weights = graph.value("weights", json()); !weights.is_null()) require_length(bundle, weights);
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(settings.at("threads"));
  options.SetInterOpNumThreads(1);
  for (const auto& [key, value] : settings.at("options").items())
    options.AddConfigEntry(key.c_str(), value.get<std::string>().c_str());
  Graph opened{Ort::Session(env, (bundle / graph.at("file").get<std::string>()).c_str(), options), {}};
  Ort::AllocatorWithDefaultOptions allocator;
  for (size_t i = 0; i < opened.session.GetInputCount(); ++i) {
    const std::string name = opened.session.GetInputNameAllocated(i, allocator).get();
    if (name == "input_ids" || name == "attention_mask" || name == "position_ids")
      opened.inputs.push_back(name);
    else if (name.rfind(kPast, 0) != 0)
      throw std::runtime_error("this program does not feed the model's input " + name);
  }
  return opened;
}

struct Model {
  Graph tokens;
  std::optional<Graph> prompts;   // where another graph computes them
  bool prompts_run_even = false;  // whether its runs take an even number of tokens
};

Model open_model(Ort::Env& env, const fs::path& bundle, const json& manifest) {
  const json& generation = manifest.at("recipe").at("generation");
  const json& tokens = manifest.at("artefacts").at(0);
  if (tokens.at("executor") != "onnxruntime")
    throw std::runtime_error("tokens of this bundle run on " + tokens.at("executor").get<std::string>() +
                             ", which this program has not: run edgeopt optimize where that is not installed");
  // attention in tiles or in one piece, as the bundle was measured; read when a session is made
  if (!generation.value("flash_attention", true)) setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "1", 0);
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
    // with weights in blocks (w4, w8; not w8a8) kernels sum the odd row at the end of a run otherwise than pairs
    const std::string precision = part.at("precision");
    model.prompts_run_even = precision.rfind("w", 0) == 0 && precision.rfind("w8a8", 0) != 0;
  }
  if (!model.prompts) throw std::runtime_error("the manifest does not name " + file);
  return model;
}

size_t bytes_of(ONNXTensorElementDataType type) {
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) return 4;
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 || type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16) return 2;
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 || type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) return 1;
  throw std::runtime_error("this program does not know the type of the model's cache");
}

// One text: it takes the next tokens and gives the likeliest one behind them.
class Text {
 public:
  // Two graphs write what is new behind the past in the same memory, which is reserved for `most` tokens. A single one
  // may be of a form that cannot, so that each run is given the cache that the one before it made.
  Text(Model& model, const json& generation, int64_t most)
      : model_(model), chunk_(generation.value("chunk", int64_t{0})), is_in_place_(model.prompts.has_value()) {
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
    auto begin = tokens.begin();
    if (model_.prompts) {  // it has no logits: the last token of a prompt runs on the other graph
      const auto end = tokens.end() - 1;
      while (begin < end) {
        const auto after = chunk_ > 0 ? begin + std::min<int64_t>(chunk_, end - begin) : end;
        run(*model_.prompts, {begin, after}, model_.prompts_run_even, nullptr);
        begin = after;
      }
    }
    Ort::Value logits{nullptr};
    run(model_.tokens, {begin, tokens.end()}, false, &logits);
    const auto info = logits.GetTensorTypeAndShapeInfo();
    if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
      throw std::runtime_error("this program reads logits of float32 alone");
    const float* end = logits.GetTensorData<float>() + info.GetElementCount();
    const float* last = end - info.GetShape().back();  // behind the last token
    return std::max_element(last, end) - last;
  }

 private:
  void run(Graph& graph, std::vector<int64_t> tokens, bool is_even, Ort::Value* logits) {
    const int64_t before = said_;
    said_ += int64_t(tokens.size());
    if (is_even && tokens.size() % 2 == 1) tokens.push_back(tokens.back());  // what follows is written over it
    std::vector<int64_t> positions(tokens.size()), mask(size_t(before) + tokens.size(), 1);
    std::iota(positions.begin(), positions.end(), before);

    Ort::IoBinding binding(graph.session);
    for (const std::string& name : graph.inputs) {
      std::vector<int64_t>& held = name == "input_ids" ? tokens : name == "attention_mask" ? mask : positions;
      const std::vector<int64_t> shape{1, int64_t(held.size())};
      binding.BindInput(name.c_str(), Ort::Value::CreateTensor<int64_t>(memory_, held.data(), held.size(), shape.data(),
                                                                        shape.size()));
    }
    for (size_t i = 0; i < past_.size(); ++i) {
      binding.BindInput(past_names_[i].c_str(), past_[i]);
      if (is_in_place_)
        binding.BindOutput(present_names_[i].c_str(), past_[i]);
      else
        binding.BindOutput(present_names_[i].c_str(), memory_);
    }
    if (logits) binding.BindOutput("logits", memory_);
    graph.session.Run(Ort::RunOptions{nullptr}, binding);
    std::vector<Ort::Value> outputs = binding.GetOutputValues();  // in the order in which they were bound
    if (logits) *logits = std::move(outputs.back());
    for (size_t i = 0; i < past_.size() && !is_in_place_; ++i) past_[i] = std::move(outputs[i]);
  }

  Model& model_;
  const int64_t chunk_;  // tokens of a prompt that run at once; 0: all
  const bool is_in_place_;
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
