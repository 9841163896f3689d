// A language model's bundle of edgeopt in C++: tokens in, the likeliest tokens out, each as soon as it is known.
//
//   edgeopt_generate BUNDLE COUNT TOKEN...
//
// The prompt runs at once, then each token alone: the cache holds keys and values of all before it. Texts become tokens
// by the tokenizer.json in the bundle, with a library for it (README.md).

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
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
  if (recipe.at("generation").value("prefill", "") != "")
    throw std::runtime_error("the bundle has a graph for prompts and another for tokens, which this program does not run together");
  if (recipe.contains("image") && recipe.at("image").value("encoder", "") != "")
    throw std::runtime_error("the bundle is that of a language model that sees pictures, which this program does not");
  return manifest;
}

// Opens the artefacts in their order, until one opens; the others run where this device cannot.
Ort::Session open_first(Ort::Env& env, const fs::path& bundle, const json& manifest) {
  for (const json& artefact : manifest.at("artefacts")) {
    const std::string file = artefact.at("file");
    const fs::path path = bundle / file;
    try {
      if (fs::path(file).filename() != file) throw std::runtime_error("it lies outside the bundle");
      if (artefact.at("executor") != "onnxruntime") throw std::runtime_error("made for another engine");
      if (fs::file_size(path) != artefact.at("size_bytes").get<uintmax_t>())
        throw std::runtime_error("not as long as the manifest says");
      Ort::SessionOptions options;
      options.SetIntraOpNumThreads(artefact.at("threads"));
      options.SetInterOpNumThreads(1);
      for (const auto& [key, value] : artefact.at("options").items())
        options.AddConfigEntry(key.c_str(), value.get<std::string>().c_str());
      return Ort::Session(env, path.c_str(), options);
    } catch (const std::exception& error) {
      std::cerr << file << " not used: " << error.what() << '\n';
    }
  }
  throw std::runtime_error("no model of the bundle opens here");
}

// One text on a decoder: a run takes its next tokens and gives the likeliest one behind them.
class Text {
 public:
  explicit Text(Ort::Session& session) : session_(session) {
    Ort::AllocatorWithDefaultOptions allocator;
    output_names_.push_back("logits");
    for (size_t i = 0; i < session.GetInputCount(); ++i) {
      const std::string name = session.GetInputNameAllocated(i, allocator).get();
      if (name.rfind("past_key_values.", 0) == 0) {
        const Ort::TypeInfo type = session.GetInputTypeInfo(i);
        const auto info = type.GetTensorTypeAndShapeInfo();
        std::vector<int64_t> shape = info.GetShape();  // texts, heads, tokens, numbers of a head
        shape.at(0) = 1;
        shape.at(2) = 0;  // nothing was said yet
        past_.push_back(Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), info.GetElementType()));
        past_names_.push_back(name);
        output_names_.push_back("present." + name.substr(std::string("past_key_values.").size()));
      } else if (name == "input_ids" || name == "attention_mask" || name == "position_ids") {
        own_names_.push_back(name);
      } else {
        throw std::runtime_error("this program does not feed the model's input " + name);
      }
    }
  }

  int64_t next(std::vector<int64_t> tokens) {
    const int64_t count = int64_t(tokens.size()), before = said_;
    said_ += count;
    std::vector<int64_t> mask(size_t(said_), 1), positions(tokens.size());
    for (int64_t i = 0; i < count; ++i) positions[size_t(i)] = before + i;

    std::vector<Ort::Value> inputs;
    std::vector<const char*> input_names, output_names;
    for (const std::string& name : own_names_) {
      std::vector<int64_t>& held = name == "input_ids" ? tokens : name == "attention_mask" ? mask : positions;
      const std::vector<int64_t> shape{1, int64_t(held.size())};
      inputs.push_back(
          Ort::Value::CreateTensor<int64_t>(memory_, held.data(), held.size(), shape.data(), shape.size()));
      input_names.push_back(name.c_str());
    }
    for (size_t i = 0; i < past_.size(); ++i) {
      inputs.push_back(std::move(past_[i]));
      input_names.push_back(past_names_[i].c_str());
    }
    for (const std::string& name : output_names_) output_names.push_back(name.c_str());

    std::vector<Ort::Value> outputs = session_.Run(Ort::RunOptions{nullptr}, input_names.data(), inputs.data(),
                                                   inputs.size(), output_names.data(), output_names.size());
    for (size_t i = 0; i < past_.size(); ++i) past_[i] = std::move(outputs[i + 1]);
    const auto info = outputs[0].GetTensorTypeAndShapeInfo();
    if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
      throw std::runtime_error("this program reads logits of float32 alone");
    const float* end = outputs[0].GetTensorData<float>() + info.GetElementCount();
    const float* last = end - info.GetShape().back();  // behind the last token
    return std::max_element(last, end) - last;
  }

 private:
  Ort::Session& session_;
  Ort::MemoryInfo memory_ = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<std::string> own_names_, past_names_, output_names_;
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
    const int64_t context = generation.at("context");
    const int64_t most = std::min<int64_t>(number(arguments[2]), context - int64_t(tokens.size()));

    Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "edgeopt_generate");
    Ort::Session session = open_first(env, bundle, manifest);
    Text text(session);
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
