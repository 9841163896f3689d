// A bundle of edgeopt on ncnn in C++: manifest.json, the engine's own file, one tensor in, the outputs out.
//
//   edgeopt_ncnn BUNDLE INPUT.f32 OUTPUT.f32
//
// INPUT.f32 holds the numbers of the model's first input as float32, as the recipe makes them of a frame: resized,
// normalised, channels first. OUTPUT.f32 gets those of all outputs, one after the other. `model.ncnn` is read without any
// library of edgeopt; its layout is described in edgeopt/executors/ncnn/file.py.

#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <net.h>
#include <nlohmann/json.hpp>

using nlohmann::json;
namespace fs = std::filesystem;

std::vector<char> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// The parts of `model.ncnn`; the weights must outlive the network, which reads them where they are.
struct Model {
  std::vector<char> data;
  json ports;
  size_t param = 0;
  size_t weights = 0;

  explicit Model(const fs::path& path) : data(read_file(path)) {
    uint32_t version = 0, described = 0, text = 0;
    uint64_t size = 0;
    if (data.size() < 32 || std::memcmp(data.data(), "EDGENCNN", 8) != 0)
      throw std::runtime_error(path.string() + " is no network of ncnn");
    std::memcpy(&version, data.data() + 8, 4);
    std::memcpy(&described, data.data() + 12, 4);
    std::memcpy(&text, data.data() + 16, 4);
    std::memcpy(&size, data.data() + 24, 8);
    if (version != 1) throw std::runtime_error(path.string() + " is of version " + std::to_string(version));
    param = 32 + size_t(described);
    weights = (param + text + 1 + 63) / 64 * 64;
    if (weights + size != data.size()) throw std::runtime_error(path.string() + " is cut off");
    ports = json::parse(data.data() + 32, data.data() + param);
  }
};

const json& artefact_of(const json& manifest) {
  if (manifest.contains("targets"))
    throw std::runtime_error(
        "the bundle is for several targets: take one out with edgeopt bundle BUNDLE --target ncnn-cpu --out FOLDER");
  for (const json& artefact : manifest.at("artefacts"))
    if (artefact.at("executor") == "ncnn") return artefact;
  throw std::runtime_error("the bundle holds no model for ncnn: make it with edgeopt optimize MODEL --target ncnn-cpu");
}

ncnn::Mat mat_of(const json& dims, const float* values) {
  size_t count = 1;
  for (int size : dims) count *= size_t(size);
  ncnn::Mat flat(int(count), const_cast<float*>(values));
  const std::vector<int> d = dims.get<std::vector<int>>();
  if (d.size() == 1) return flat.clone();
  if (d.size() == 2) return flat.reshape(d[1], d[0]).clone();
  if (d.size() == 3) return flat.reshape(d[2], d[1], d[0]).clone();
  return flat.reshape(d[3], d[2], d[1], d[0]).clone();
}

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "usage: edgeopt_ncnn BUNDLE INPUT.f32 OUTPUT.f32\n";
    return 2;
  }
  try {
    const fs::path bundle = arguments[1];
    const std::vector<char> text = read_file(bundle / "manifest.json");
    const json manifest = json::parse(text.begin(), text.end());
    const json& artefact = artefact_of(manifest);
    const std::string file = artefact.at("file");
    if (fs::path(file).filename() != file) throw std::runtime_error(file + " lies outside the bundle");
    const Model model(bundle / file);

    ncnn::Net net;
    const std::string precision = artefact.at("precision");
    net.opt.num_threads = artefact.at("threads");
    net.opt.use_vulkan_compute = false;
    // ncnn stores floats in 16 bits wherever it can, unless it is told not to: the bundle was judged otherwise
    const std::string floats = precision.substr(precision.find('+') + 1);  // w8a8+bf16: the rest in bf16
    net.opt.use_bf16_storage = floats == "bf16";
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = floats == "fp16";
    if (net.load_param_mem(model.data.data() + model.param) != 0) throw std::runtime_error("ncnn refuses the layers");
    net.load_model(reinterpret_cast<const unsigned char*>(model.data.data() + model.weights));

    const json& input = model.ports.at("inputs").at(0);
    const std::vector<char> bytes = read_file(arguments[2]);
    size_t wanted = sizeof(float);
    for (size_t size : input.at("shape")) wanted *= size;
    if (bytes.size() != wanted) throw std::runtime_error("the input is not " + input.at("shape").dump() + " float32");
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());

    std::ofstream made(arguments[3], std::ios::binary);
    const auto began = std::chrono::steady_clock::now();
    ncnn::Extractor extractor = net.create_extractor();
    extractor.input(input.at("blob").get<std::string>().c_str(), mat_of(input.at("dims"), values.data()));
    for (const json& output : model.ports.at("outputs")) {
      ncnn::Mat blob;
      if (extractor.extract(output.at("blob").get<std::string>().c_str(), blob) != 0)
        throw std::runtime_error("ncnn does not run the model");
      const ncnn::Mat flat = blob.reshape(int(blob.w * blob.h * blob.d * blob.c));  // without the gaps between channels
      made.write(static_cast<const char*>(flat.data), std::streamsize(flat.w * sizeof(float)));
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    made.close();
    if (!made) throw std::runtime_error(std::string(arguments[3]) + " cannot be written");
    std::cerr << file << " in " << precision << ": first run in " << took.count() << " ms\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "edgeopt_ncnn: " << error.what() << '\n';
    return 1;
  }
}
