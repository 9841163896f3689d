// edgeopt-runner: runs and times models on a device that has no Python, for edgeopt's commands with `--on adb://SERIAL`.
//
//   edgeopt-runner REQUEST
//
// REQUEST is a file of lines, a word and its value; edgeopt writes it (toolkit/edgeopt/verbs/android/request.py).
// What is measured is printed as it comes, a line of JSON each, so that nothing is lost with a cable. In the mode `serve`
// tensors come on the standard input, and behind the line of an answer its outputs follow.

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <onnxruntime_cxx_api.h>

namespace {

constexpr int kForm = 2;            // of requests and lines: edgeopt refuses a runner of another form
constexpr int kMarked = 15;         // frames with marks in a row, of which
constexpr int kAgain = 5;           // the last run again without, to see what marks cost
constexpr int64_t kTellNs = 250'000'000;
constexpr int64_t kReadingNs = 1'000'000'000;

int64_t clock_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

int64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') {
      result += '\\';
      result += letter;
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", letter);
      result += code;
    } else {
      result += letter;
    }
  }
  return result + '"';
}

void tell(const std::string& line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
  if (std::ferror(stdout)) std::_Exit(4);  // nobody listens any more
}

template <typename Numbers>
std::string listed(const Numbers& numbers) {
  std::string result = "[";
  for (const auto number : numbers) {
    if (result.size() > 1) result += ',';
    result += std::to_string(number);
  }
  return result + ']';
}

// ---- the request

struct Input {
  std::string name;
  ONNXTensorElementDataType type{};
  std::vector<int64_t> shape;
  size_t bytes = 0;
};

struct Work {
  std::string path, inputs;
  int threads = 1, level = ORT_ENABLE_ALL, samples = 0;
  bool has_pattern = true;
  std::vector<std::pair<std::string, std::string>> entries;
  std::vector<Input> fed;
};

struct Request {
  std::string mode;
  double seconds = 5, warmup_s = 2;
  int64_t frames = 1;
  int block = 1, rounds = 5, most = 0;  // most rounds; 0: as the seconds say
  std::vector<std::vector<int>> orders;
  std::vector<Work> works;
};

struct Type {
  const char* name;
  ONNXTensorElementDataType type;
  size_t bytes;
};

constexpr Type kTypes[] = {
    {"float32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4},   {"float64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8},
    {"float16", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2}, {"bool", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1},
    {"uint8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1},     {"int8", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1},
    {"uint16", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, 2},   {"int16", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, 2},
    {"uint32", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, 4},   {"int32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4},
    {"uint64", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, 8},   {"int64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8},
};

const Type& type_of(const std::string& name) {
  for (const Type& each : kTypes)
    if (name == each.name) return each;
  throw std::runtime_error("no tensors of type " + name + " are carried");
}

const Type& type_of(ONNXTensorElementDataType type) {
  for (const Type& each : kTypes)
    if (type == each.type) return each;
  throw std::runtime_error("an output is of a type that is not carried: " + std::to_string(type));
}

std::string rest_of(std::istream& line) {
  std::string rest;
  std::getline(line >> std::ws, rest);
  return rest;
}

Input read_input(std::istream& line) {
  Input input;
  std::string type, sizes;
  line >> type >> sizes;
  input.name = rest_of(line);
  input.type = type_of(type).type;
  input.bytes = type_of(type).bytes;
  std::istringstream parts(sizes == "-" ? "" : sizes);
  for (std::string size; std::getline(parts, size, 'x');) {
    input.shape.push_back(std::stoll(size));
    input.bytes *= size_t(input.shape.back());
  }
  return input;
}

Request read_request(const char* path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(std::string("no request ") + path);
  Request request;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string word;
    line >> word;
    if (word == "model") request.works.emplace_back().path = rest_of(line);
    else if (word == "mode") line >> request.mode;
    else if (word == "seconds") line >> request.seconds;
    else if (word == "warmup") line >> request.warmup_s;
    else if (word == "frames") line >> request.frames;
    else if (word == "block") line >> request.block;
    else if (word == "rounds") line >> request.rounds;
    else if (word == "most") line >> request.most;
    else if (word == "order") {
      request.orders.emplace_back();
      for (int number; line >> number;) request.orders.back().push_back(number);
    } else if (request.works.empty()) throw std::runtime_error("the request begins with " + word);
    else if (Work& work = request.works.back(); word == "threads") line >> work.threads;
    else if (word == "level") line >> work.level;
    else if (word == "pattern") line >> work.has_pattern;
    else if (word == "samples") line >> work.samples;
    else if (word == "inputs") work.inputs = rest_of(line);
    else if (word == "input") work.fed.push_back(read_input(line));
    else if (word == "entry") {
      std::string key;
      line >> key;
      work.entries.emplace_back(key, rest_of(line));
    } else throw std::runtime_error("the request has the word " + word);
  }
  return request;
}

// ---- the counters of the device, as they stand in its files; edgeopt reads them

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

std::string line_of(const std::string& path, const std::string& begin) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.compare(0, begin.size(), begin) == 0) return line.substr(begin.size());
  return "";
}

int64_t number_in(const std::string& text) {
  const size_t at = text.find_first_of("-0123456789");
  return at == std::string::npos ? -1 : std::strtoll(text.c_str() + at, nullptr, 10);
}

class Counters {
 public:
  Counters() {
    std::vector<std::string> all;
    for (int i = 0; i < 128; ++i) {
      const std::string zone = "/sys/class/thermal/thermal_zone" + std::to_string(i);
      const std::string type = text_of(zone + "/type");
      if (type.empty()) continue;
      all.push_back(zone + "/temp");
      for (const char* part : {"cpu", "CPU", "soc", "skin", "batt", "x86_pkg"})
        if (type.find(part) != std::string::npos) {
          zones_.push_back(zone + "/temp");
          break;
        }
    }
    if (zones_.empty()) zones_ = all;
    for (int i = 0; i < 1024; ++i) {
      const std::string core = "/sys/devices/system/cpu/cpu" + std::to_string(i);
      if (access(core.c_str(), F_OK) != 0) break;
      cores_.push_back(core + "/cpufreq/");
    }
    ceilings_ = ceilings();
  }

  std::string reading() {
    const std::vector<int64_t> now = ceilings();
    for (size_t i = 0; i < now.size(); ++i)
      if (now[i] >= 0 && now[i] < ceilings_[i]) ++lowered_;
    ceilings_ = now;
    std::vector<int64_t> mhz, temperatures;
    for (const std::string& core : cores_) mhz.push_back(number_in(text_of(core + "scaling_cur_freq")));
    for (const std::string& zone : zones_) temperatures.push_back(number_in(text_of(zone)));
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    std::ostringstream line;
    line << "{\"reading\":{\"at_ns\":" << now_ns() << ",\"wall_ns\":" << clock_ns(CLOCK_REALTIME)
         << ",\"cpu\":" << quoted(line_of("/proc/stat", "cpu ")) << ",\"hz\":" << sysconf(_SC_CLK_TCK)
         << ",\"own_ns\":" << clock_ns(CLOCK_PROCESS_CPUTIME_ID) << ",\"switches\":" << used.ru_nivcsw
         << ",\"major_faults\":" << used.ru_majflt
         << ",\"pressure\":" << quoted(line_of("/proc/pressure/cpu", "some ")) << ",\"khz\":" << listed(mhz)
         << ",\"ceiling_khz\":" << listed(now) << ",\"lowered\":" << lowered_
         << ",\"temperature\":" << listed(temperatures) << ",\"load\":" << quoted(text_of("/proc/loadavg")) << "}}";
    return line.str();
  }

 private:
  std::vector<int64_t> ceilings() const {
    std::vector<int64_t> result;
    for (const std::string& core : cores_) result.push_back(number_in(text_of(core + "scaling_max_freq")));
    return result;
  }

  std::vector<std::string> zones_, cores_;
  std::vector<int64_t> ceilings_;
  int64_t lowered_ = 0;
};

std::string memory() {
  const std::string pages = text_of("/proc/self/statm");
  const size_t second = pages.find(' ');
  const int64_t resident = second == std::string::npos ? -1 : number_in(pages.substr(second)) * sysconf(_SC_PAGESIZE);
  const int64_t available = number_in(line_of("/proc/meminfo", "MemAvailable:")) * 1024;
  return "{\"memory\":" + listed(std::vector<int64_t>{now_ns(), resident, available}) + "}";
}

// ---- a model and its frames

class Model {
 public:
  Model(Ort::Env& env, const Work& work) {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(work.threads);
    options.SetInterOpNumThreads(1);
    options.SetGraphOptimizationLevel(GraphOptimizationLevel(work.level));
    if (!work.has_pattern) options.DisableMemPattern();
    for (const auto& [key, value] : work.entries) options.AddConfigEntry(key.c_str(), value.c_str());
    const int64_t began = now_ns();
    session_ = Ort::Session(env, work.path.c_str(), options);
    opening_ns_ = now_ns() - began;
    const Ort::AllocatorWithDefaultOptions allocator;
    for (size_t i = 0; i < session_.GetOutputCount(); ++i)
      outputs_.emplace_back(session_.GetOutputNameAllocated(i, allocator).get());
    for (const std::string& name : outputs_) output_names_.push_back(name.c_str());
    if (work.fed.empty()) return;  // they come with each frame
    take_inputs(work.fed);
    read_samples(work);
  }

  // Makes room for inputs of these names and shapes.
  void take_inputs(const std::vector<Input>& fed) {
    fed_ = fed;
    places_.clear();
    values_.clear();
    input_names_.clear();
    sample_bytes_ = 0;
    const Ort::MemoryInfo host = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    for (const Input& input : fed_) {
      input_names_.push_back(input.name.c_str());
      sample_bytes_ += input.bytes;
      places_.emplace_back(new uint64_t[input.bytes / 8 + 1]);
      values_.push_back(Ort::Value::CreateTensor(host, places_.back().get(), input.bytes, input.shape.data(),
                                                 input.shape.size(), input.type));
    }
  }

  // Reads one sample of the inputs that it has room for; false: there is none any more.
  bool read_sample(std::istream& from) {
    samples_ = 1;
    data_.resize(sample_bytes_);
    return bool(from.read(data_.data(), std::streamsize(sample_bytes_)));
  }

  int64_t opening_ns() const { return opening_ns_; }
  int samples() const { return samples_; }
  const std::vector<std::string>& outputs() const { return outputs_; }

  void upload(int sample) {
    const char* from = data_.data() + size_t(sample) * sample_bytes_;
    for (size_t i = 0; i < fed_.size(); from += fed_[i].bytes, ++i) std::memcpy(places_[i].get(), from, fed_[i].bytes);
  }

  std::vector<Ort::Value> execute() {
    return session_.Run(Ort::RunOptions{nullptr}, input_names_.data(), values_.data(), values_.size(),
                        output_names_.data(), output_names_.size());
  }

  void download(const std::vector<Ort::Value>& results) {
    size_t size = 0;
    for (const Ort::Value& result : results) size += bytes_of(result);
    if (size > copied_.size()) copied_.resize(size);
    size = 0;
    for (const Ort::Value& result : results) {
      std::memcpy(copied_.data() + size, result.GetTensorRawData(), bytes_of(result));
      size += bytes_of(result);
    }
    copied_bytes_ = size;
    seen_ = size ? copied_[size - 1] : 0;
  }

  const char* copied() const { return copied_.data(); }
  size_t copied_bytes() const { return copied_bytes_; }

  static size_t bytes_of(const Ort::Value& result) {
    const auto info = result.GetTensorTypeAndShapeInfo();
    return info.GetElementCount() * type_of(info.GetElementType()).bytes;
  }

 private:
  void read_samples(const Work& work) {
    samples_ = work.samples;
    data_.resize(samples_ < 1 ? 0 : size_t(samples_) * sample_bytes_);
    std::ifstream file(work.inputs, std::ios::binary);
    file.read(data_.data(), std::streamsize(data_.size()));
    if (samples_ < 1 || !file || file.peek() != std::ifstream::traits_type::eof())
      throw std::runtime_error(work.inputs + " does not hold the inputs that the request names");
  }

  std::vector<Input> fed_;
  Ort::Session session_{nullptr};
  int64_t opening_ns_ = 0;
  int samples_ = 0;
  size_t sample_bytes_ = 0, copied_bytes_ = 0;
  std::vector<std::string> outputs_;
  std::vector<const char*> input_names_, output_names_;
  std::vector<char> data_, copied_;
  std::vector<std::unique_ptr<uint64_t[]>> places_;  // aligned for every type
  std::vector<Ort::Value> values_;
  volatile char seen_ = 0;  // so that no compiler leaves the copy out
};

// Runs frames, and keeps what they took until it is told between two of them.
class Timer {
 public:
  explicit Timer(std::vector<std::unique_ptr<Model>>& models) : models_(models), counts_(models.size()) {}

  int64_t run(int number) {
    Model& model = *models_[size_t(number)];
    const int input = int(counts_[size_t(number)]++ % model.samples());
    const int64_t started = now_ns();
    model.upload(input);
    const int64_t uploaded = now_ns();
    std::vector<Ort::Value> results = model.execute();
    const int64_t executed = now_ns();
    model.download(results);
    const int64_t downloaded = now_ns();
    results.clear();
    const int64_t done = now_ns();
    rows_.insert(rows_.end(),
                 {number, started, uploaded - started, executed - uploaded, downloaded - executed, done, input});
    return done - started;
  }

  // Runs the frame of an earlier row of the first model as an app would, without marks.
  void run_again(int64_t row) {
    Model& model = *models_.front();
    const int64_t started = now_ns();
    model.upload(int(row % model.samples()));
    std::vector<Ort::Value> results = model.execute();
    model.download(results);
    results.clear();
    walls_.insert(walls_.end(), {row, now_ns() - started});
  }

  int64_t count(int number) const { return counts_[size_t(number)]; }

  void flush() {
    if (!rows_.empty()) tell("{\"rows\":" + in_rows(rows_, 7) + ",\"walls\":" + in_rows(walls_, 2) + "}");
    tell(memory());
    rows_.clear();
    walls_.clear();
  }

 private:
  static std::string in_rows(const std::vector<int64_t>& numbers, size_t columns) {
    std::string text = "[";
    for (size_t i = 0; i < numbers.size(); ++i) {
      text += i % columns ? "," : i ? "],[" : "[";
      text += std::to_string(numbers[i]);
    }
    return text + (numbers.empty() ? "]" : "]]");
  }

  std::vector<std::unique_ptr<Model>>& models_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> rows_, walls_;  // of numbers: they become text between two stretches of frames, not between two
};

// Tells what is due between two stretches of frames.
class Pauses {
 public:
  Pauses(Timer& timer, Counters& counters) : timer_(timer), counters_(counters), told_(now_ns()) {}

  void pause(bool is_warm) {
    const int64_t now = now_ns();
    if (now - told_ >= kTellNs) {
      timer_.flush();
      told_ = now;
    }
    if (is_warm && (readings_ == 0 || now - read_ >= kReadingNs)) read(now);
  }

  void end() {
    read(now_ns());
    timer_.flush();
  }

 private:
  void read(int64_t now) {
    tell(counters_.reading());
    read_ = now;
    ++readings_;
  }

  Timer& timer_;
  Counters& counters_;
  int64_t told_, read_ = 0;
  int readings_ = 0;
};

std::string outputs_of(const Model& model, const std::vector<Ort::Value>& results) {
  std::string outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto info = results[i].GetTensorTypeAndShapeInfo();
    if (i) outputs += ',';
    outputs += "{\"name\":" + quoted(model.outputs()[i]) + ",\"dtype\":\"" + type_of(info.GetElementType()).name +
               "\",\"shape\":" + listed(info.GetShape()) + "}";
  }
  return outputs;
}

// Answers samples from the standard input until it ends. Before each come its inputs, a line each as in a request, and
// `run`; behind the line with the answer come the bytes of its outputs.
void serve(Model& model, int64_t began) {
  std::vector<Input> fed;
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream line(text);
    std::string word;
    line >> word;
    if (word == "input") {
      fed.push_back(read_input(line));
      continue;
    }
    if (word != "run") throw std::runtime_error("what comes in is " + word);
    model.take_inputs(fed);
    fed.clear();
    if (!model.read_sample(std::cin)) return;
    const int64_t started = now_ns();
    model.upload(0);
    const int64_t uploaded = now_ns();
    std::vector<Ort::Value> results = model.execute();
    const int64_t executed = now_ns();
    model.download(results);
    const int64_t done = now_ns();
    const int64_t peak = number_in(line_of("/proc/self/status", "VmHWM:"));
    tell("{\"answer\":{\"outputs\":[" + outputs_of(model, results) + "],\"stages_ns\":" +
         listed(std::vector<int64_t>{uploaded - started, executed - uploaded, done - executed}) +
         ",\"since_start_ns\":" + std::to_string(done - began) +
         ",\"peak_bytes\":" + std::to_string(peak < 0 ? -1 : peak * 1024) +
         ",\"bytes\":" + std::to_string(model.copied_bytes()) + "}}");
    std::fwrite(model.copied(), 1, model.copied_bytes(), stdout);
    std::fflush(stdout);
    if (std::ferror(stdout)) std::_Exit(4);
  }
}

void run_load(Timer& timer, Pauses& pauses, const Request& request) {
  const double warmup_ns = request.warmup_s * 1e9, all_ns = warmup_ns + request.seconds * 1e9;
  int64_t spent = 0, cold = 0;
  while (double(spent) < all_ns || timer.count(0) - cold < request.frames) {
    for (int i = 0; i < kMarked; ++i) spent += timer.run(0);
    for (int i = kAgain; i > 0; --i) timer.run_again(timer.count(0) - i);
    const bool is_warm = double(spent) >= warmup_ns;
    if (!is_warm) cold = timer.count(0);
    pauses.pause(is_warm);
  }
}

void run_turns(Timer& timer, Pauses& pauses, const Request& request, size_t models) {
  for (size_t number = 0; number < models; ++number)
    for (int i = 0; i < request.block; ++i) timer.run(int(number));
  const int64_t began = now_ns();
  const auto goes_on = [&](int round) {
    if (round < request.rounds) return true;
    return double(now_ns() - began) < request.seconds * 1e9 && (request.most == 0 || round < request.most);
  };
  for (int round = 0; goes_on(round); ++round)
    for (const int number : request.orders[size_t(round) % request.orders.size()]) {
      for (int i = 0; i < request.block; ++i) timer.run(number);
      pauses.pause(true);
    }
}

void perform(const Request& request, int64_t started) {
  tell("{\"runner\":" + std::to_string(kForm) + ",\"onnxruntime\":" + quoted(OrtGetApiBase()->GetVersionString()) +
       ",\"clock_ns\":" + std::to_string(now_ns()) + ",\"wall_ns\":" + std::to_string(clock_ns(CLOCK_REALTIME)) + "}");
  Ort::Env env(ORT_LOGGING_LEVEL_FATAL, "edgeopt-runner");
  std::vector<std::unique_ptr<Model>> models;
  for (const Work& work : request.works) {
    models.push_back(std::make_unique<Model>(env, work));
    tell("{\"opened_ns\":" + std::to_string(models.back()->opening_ns()) + "}");
  }
  if (request.mode == "serve" && !models.empty()) {
    serve(*models.front(), started);
  } else if (request.mode != "greet") {
    if (models.empty()) throw std::runtime_error("the request names no model");
    Timer timer(models);
    Counters counters;
    Pauses pauses(timer, counters);
    const int64_t began = now_ns(), used = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    if (request.mode == "load") run_load(timer, pauses, request);
    else if (request.mode == "turns") run_turns(timer, pauses, request, models.size());
    else throw std::runtime_error("the request has the mode " + request.mode);
    const int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - used, wall = now_ns() - began;
    pauses.end();
    const int64_t peak = number_in(line_of("/proc/self/status", "VmHWM:"));
    tell("{\"cpu_ns\":" + std::to_string(cpu) + ",\"span_ns\":" + std::to_string(wall) +
         ",\"peak_bytes\":" + std::to_string(peak < 0 ? -1 : peak * 1024) + "}");
  }
  tell("{\"done\":true}");
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t started = now_ns();
  if (count != 2) {
    std::fputs("usage: edgeopt-runner REQUEST\n", stderr);
    return 2;
  }
  try {
    perform(read_request(arguments[1]), started);
    return 0;
  } catch (const std::exception& error) {
    tell("{\"error\":" + quoted(error.what()) + "}");
    return 1;
  }
}
