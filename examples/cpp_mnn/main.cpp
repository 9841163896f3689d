// A model on MNN in C++: the files that `edgeopt optimize --emit mnn` wrote, one tensor in, the outputs out.
//
//   edgeopt_mnn FOLDER INPUT.f32 OUTPUT.f32
//
// FOLDER holds model.mnn and edgeopt.json. INPUT.f32 holds the numbers of the model's input as float32, as the recipe
// makes them of a frame: resized, normalised, channels first. OUTPUT.f32 gets those of all outputs, one after the other.
// Behind MNN's own file lies what it does not read: names, types and shapes of the ONNX model (README.md).

#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <MNN/Interpreter.hpp>
#include <MNN/Tensor.hpp>
#include <nlohmann/json.hpp>

using nlohmann::json;
namespace fs = std::filesystem;

std::vector<char> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// What lies behind the network: `inputs` and `outputs`, each with name, type and shape in the ONNX model.
json ports_of(const std::vector<char>& file, const fs::path& path) {
  const size_t tail = sizeof(uint32_t) + 8;
  uint32_t length = 0;
  if (file.size() < tail || std::memcmp(file.data() + file.size() - 8, "EDGE-MNN", 8) != 0)
    throw std::runtime_error(path.string() + " is no network that edgeopt wrote, or is cut off");
  std::memcpy(&length, file.data() + file.size() - tail, sizeof length);
  if (length > file.size() - tail) throw std::runtime_error(path.string() + " is damaged");
  const char* end = file.data() + file.size() - tail;
  return json::parse(end - length, end);
}

size_t count_of(const json& shape) {
  size_t count = 1;
  for (const size_t size : shape) count *= size;
  return count;
}

// Whether a tensor holds numbers of a kind, of 32 bits.
bool holds(const MNN::Tensor& tensor, halide_type_code_t code) {
  return tensor.getType().code == code && tensor.getType().bits == 32;
}

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "usage: edgeopt_mnn FOLDER INPUT.f32 OUTPUT.f32\n";
    return 2;
  }
  try {
    const fs::path folder = arguments[1], path = folder / "model.mnn";
    const std::vector<char> text = read_file(folder / "edgeopt.json");
    const json facts = json::parse(text.begin(), text.end());
    if (facts.at("engine") != "mnn") throw std::runtime_error("the folder is that of " + facts.at("engine").dump());
    const std::vector<char> file = read_file(path);
    const json ports = ports_of(file, path);
    if (ports.at("inputs").size() != 1) throw std::runtime_error("this program feeds models of one input alone");

    const std::unique_ptr<MNN::Interpreter> network(MNN::Interpreter::createFromBuffer(file.data(), file.size()));
    if (!network) throw std::runtime_error("MNN does not load " + path.string());
    MNN::BackendConfig backend;  // without it MNN computes in the precision that it likes
    backend.precision = MNN::BackendConfig::PrecisionMode(facts.at("settings").at("precision").get<int>());
    MNN::ScheduleConfig schedule;
    schedule.type = MNN_FORWARD_CPU;
    schedule.numThread = facts.at("settings").at("numThread");
    schedule.backendConfig = &backend;
    MNN::Session* session = network->createSession(schedule);  // the network frees it
    if (session == nullptr) throw std::runtime_error("MNN makes no session of " + path.string());

    const json& input = ports.at("inputs").at(0);  // name, type, shape
    const std::vector<char> bytes = read_file(arguments[2]);
    if (bytes.size() != count_of(input.at(2)) * sizeof(float))
      throw std::runtime_error("the input is not " + input.at(2).dump() + " float32");
    MNN::Tensor* taken = nullptr;  // where nothing reads the input, MNN has none
    for (const auto& [name, tensor] : network->getSessionInputAll(session)) {
      if (name != input.at(0)) throw std::runtime_error("the network reads " + name + ", which its file does not name");
      taken = tensor;
    }
    std::unique_ptr<MNN::Tensor> given;
    if (taken != nullptr) {
      given = std::make_unique<MNN::Tensor>(taken, MNN::Tensor::CAFFE);  // axes in the order of ONNX
      if (!holds(*taken, halide_type_float) || size_t(given->elementSize()) * sizeof(float) != bytes.size())
        throw std::runtime_error("MNN takes another type or shape of " + input.dump());
      std::memcpy(given->host<float>(), bytes.data(), bytes.size());
    }

    std::vector<std::unique_ptr<MNN::Tensor>> made;
    const auto began = std::chrono::steady_clock::now();
    if (taken != nullptr) taken->copyFromHostTensor(given.get());  // before each run: MNN writes over an input's memory
    if (network->runSession(session) != MNN::NO_ERROR) throw std::runtime_error("MNN does not run the model");
    for (const json& output : ports.at("outputs")) {
      const MNN::Tensor* result = network->getSessionOutput(session, output.at(0).get<std::string>().c_str());
      if (result == nullptr) throw std::runtime_error("MNN gives no output " + output.dump());
      made.push_back(std::make_unique<MNN::Tensor>(result, MNN::Tensor::CAFFE));
      result->copyToHostTensor(made.back().get());
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;

    std::ofstream written(arguments[3], std::ios::binary);
    for (size_t i = 0; i < made.size(); ++i) {
      const json& output = ports.at("outputs").at(i);
      const size_t wanted = count_of(output.at(2));
      const bool is_float = holds(*made[i], halide_type_float);  // its own type: MNN has no 64-bit integers
      if (size_t(made[i]->elementSize()) != wanted || !(is_float || holds(*made[i], halide_type_int)))
        throw std::runtime_error("MNN gives another type or shape of " + output.dump());
      std::vector<float> numbers(wanted);
      for (size_t k = 0; k < wanted; ++k)
        numbers[k] = is_float ? made[i]->host<float>()[k] : float(made[i]->host<int32_t>()[k]);
      written.write(reinterpret_cast<const char*>(numbers.data()), std::streamsize(wanted * sizeof(float)));
    }
    written.close();
    if (!written) throw std::runtime_error(std::string(arguments[3]) + " cannot be written");
    std::cerr << path.string() << " in " << facts.at("precision").get<std::string>() << ": first run in " << took.count()
              << " ms\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "edgeopt_mnn: " << error.what() << '\n';
    return 1;
  }
}
