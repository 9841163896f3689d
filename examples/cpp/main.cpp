// A bundle of edgeopt in C++: manifest.json, one picture in, the answer as one line of JSON.
//
//   edgeopt_run BUNDLE PICTURE
//
// The bundle's models hold their pre- and postprocessing, so that nothing of the recipe is written here:
//   edgeopt optimize MODEL --steps default,embed-preprocess,embed-postprocess

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <onnxruntime_cxx_api.h>

#define STB_IMAGE_IMPLEMENTATION
#define STBI_FAILURE_USERMSG
#include <stb/stb_image.h>

using nlohmann::json;
namespace fs = std::filesystem;

struct Frame {
  int height = 0;
  int width = 0;
  std::vector<uint8_t> pixels;  // height x width x 3: blue, green, red
};

Frame read_picture(const std::string& path) {
  Frame frame;
  std::unique_ptr<stbi_uc, decltype(&stbi_image_free)> rgb(
      stbi_load(path.c_str(), &frame.width, &frame.height, nullptr, 3), stbi_image_free);
  if (!rgb) throw std::runtime_error(path + ": " + stbi_failure_reason());
  const size_t count = size_t(frame.height) * frame.width * 3;
  frame.pixels.resize(count);
  for (size_t i = 0; i < count; i += 3) {
    frame.pixels[i] = rgb.get()[i + 2];
    frame.pixels[i + 1] = rgb.get()[i + 1];
    frame.pixels[i + 2] = rgb.get()[i];
  }
  return frame;
}

json read_manifest(const fs::path& bundle) {
  std::ifstream file(bundle / "manifest.json");
  if (!file) throw std::runtime_error(bundle.string() + " holds no manifest.json");
  json manifest = json::parse(file);
  if (manifest.contains("targets"))
    throw std::runtime_error(
        bundle.string() + " is for several targets: take one out with "
        "edgeopt bundle BUNDLE --target NAME --out FOLDER");
  const json parts = manifest.at("recipe").value("embedded", json::array());
  if (parts != json{"preprocess", "postprocess"})
    throw std::runtime_error(
        "the bundle's models hold no pre- and postprocessing: make it with "
        "edgeopt optimize MODEL --steps default,embed-preprocess,embed-postprocess");
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

std::string class_name(const json& manifest, int64_t index) {
  const json& names = manifest.at("recipe").at("class_names");
  return size_t(index) < names.size() ? names[size_t(index)].get<std::string>() : "class " + std::to_string(index);
}

double rounded(double value, double steps) { return std::round(value * steps) / steps; }

json detections(const json& manifest, std::vector<Ort::Value>& outputs) {
  const float* boxes = outputs[0].GetTensorData<float>();
  const float* scores = outputs[1].GetTensorData<float>();
  const int64_t* classes = outputs[2].GetTensorData<int64_t>();
  const size_t count = outputs[1].GetTensorTypeAndShapeInfo().GetElementCount();
  json found = json::array();
  for (size_t i = 0; i < count; ++i) {
    json box = json::array();
    for (size_t side = 0; side < 4; ++side) box.push_back(rounded(boxes[4 * i + side], 100));
    found.push_back({{"box", box}, {"score", rounded(scores[i], 10000)}, {"class", class_name(manifest, classes[i])}});
  }
  return {{"detections", found}};
}

json best_classes(const json& manifest, std::vector<Ort::Value>& outputs) {
  const float* scores = outputs[0].GetTensorData<float>();
  const int64_t* classes = outputs[1].GetTensorData<int64_t>();
  const size_t count = outputs[0].GetTensorTypeAndShapeInfo().GetElementCount();
  json found = json::array();
  for (size_t i = 0; i < count; ++i)
    found.push_back(
        {{"class", class_name(manifest, classes[i])}, {"index", classes[i]}, {"score", rounded(scores[i], 10000)}});
  return {{"classes", found}};
}

int main(int count, char** arguments) {
  if (count != 3) {
    std::cerr << "usage: edgeopt_run BUNDLE PICTURE\n";
    return 2;
  }
  try {
    const fs::path bundle = arguments[1];
    const json manifest = read_manifest(bundle);
    Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "edgeopt_run");
    Ort::Session session = open_first(env, bundle, manifest);

    Frame frame = read_picture(arguments[2]);
    const std::vector<int64_t> shape{frame.height, frame.width, 3};
    const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    const Ort::Value input = Ort::Value::CreateTensor<uint8_t>(memory, frame.pixels.data(), frame.pixels.size(),
                                                               shape.data(), shape.size());
    const bool is_detector = manifest.at("recipe").at("task") == "detection";
    std::vector<const char*> names{"scores", "classes"};
    if (is_detector) names.insert(names.begin(), "boxes");

    const char* frame_name = "frame";
    const auto began = std::chrono::steady_clock::now();
    std::vector<Ort::Value> outputs =
        session.Run(Ort::RunOptions{nullptr}, &frame_name, &input, 1, names.data(), names.size());
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;

    std::cout << (is_detector ? detections(manifest, outputs) : best_classes(manifest, outputs)) << '\n';
    std::cerr << "first frame in " << took.count() << " ms\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "edgeopt_run: " << error.what() << '\n';
    return 1;
  }
}
