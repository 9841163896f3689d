/* A bundle of edgeopt in C: manifest.json, one picture in, the answer as one line of JSON.
 *
 *   edgeopt_run BUNDLE PICTURE
 *
 * The bundle's models hold their pre- and postprocessing, so that nothing of the recipe is written here:
 *   edgeopt optimize MODEL --steps default,embed-preprocess,embed-postprocess
 */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <onnxruntime_c_api.h>

#define STB_IMAGE_IMPLEMENTATION
#define STBI_FAILURE_USERMSG
#include <stb/stb_image.h>

static const OrtApi* ort;

static void fail(const char* what, const char* why) {
  fprintf(stderr, "edgeopt_run: %s: %s\n", what, why);
  exit(1);
}

/* Ends the program where a call of ONNX Runtime failed. */
static void require(OrtStatus* status) {
  if (status) fail("ONNX Runtime", ort->GetErrorMessage(status));
}

static char* join(const char* folder, const char* name) {
  const size_t room = strlen(folder) + strlen(name) + 2;
  char* path = malloc(room);
  snprintf(path, room, "%s/%s", folder, name);
  return path;
}

static char* read_text(const char* path) {
  FILE* file = fopen(path, "rb");
  if (!file) fail(path, "cannot be opened");
  fseek(file, 0, SEEK_END);
  const long size = ftell(file);
  rewind(file);
  char* text = size < 0 ? NULL : malloc((size_t)size + 1);
  if (!text || fread(text, 1, (size_t)size, file) != (size_t)size) fail(path, "cannot be read");
  text[size] = 0;
  fclose(file);
  return text;
}

/* Returns an entry of an object, and ends the program where there is none. */
static const cJSON* entry(const cJSON* object, const char* key) {
  const cJSON* found = cJSON_GetObjectItemCaseSensitive(object, key);
  if (!found) fail("manifest.json lacks", key);
  return found;
}

/* Returns a text of an object, and ends the program where there is none. */
static const char* text_of(const cJSON* object, const char* key) {
  const char* found = cJSON_GetStringValue(entry(object, key));
  if (!found) fail("manifest.json holds no text", key);
  return found;
}

static const cJSON* recipe_of(const cJSON* manifest) {
  if (cJSON_GetObjectItemCaseSensitive(manifest, "targets"))
    fail("the bundle is for several targets", "take one out with edgeopt bundle BUNDLE --target NAME --out FOLDER");
  const cJSON* recipe = entry(manifest, "recipe");
  const cJSON* parts = cJSON_GetObjectItemCaseSensitive(recipe, "embedded");
  if (cJSON_GetArraySize(parts) != 2)
    fail("the bundle's models hold no pre- and postprocessing",
         "make it with edgeopt optimize MODEL --steps default,embed-preprocess,embed-postprocess");
  return recipe;
}

/* Opens one artefact; NULL, and why on stderr, where it does not run here. */
static OrtSession* open_artefact(OrtEnv* env, const char* bundle, const cJSON* artefact) {
  const char* file = text_of(artefact, "file");
  if (strcmp(text_of(artefact, "executor"), "onnxruntime") != 0) {
    fprintf(stderr, "%s not used: made for another engine\n", file);
    return NULL;
  }
  if (strpbrk(file, "/\\")) fail(file, "lies outside the bundle");
  OrtSessionOptions* options = NULL;
  require(ort->CreateSessionOptions(&options));
  require(ort->SetIntraOpNumThreads(options, entry(artefact, "threads")->valueint));
  require(ort->SetInterOpNumThreads(options, 1));
  const cJSON* option = NULL;
  cJSON_ArrayForEach(option, entry(artefact, "options"))
      if (cJSON_IsString(option)) require(ort->AddSessionConfigEntry(options, option->string, option->valuestring));
  char* path = join(bundle, file);
  OrtSession* session = NULL;
  OrtStatus* status = ort->CreateSession(env, path, options, &session);
  if (status) {
    fprintf(stderr, "%s not used: %s\n", file, ort->GetErrorMessage(status));
    ort->ReleaseStatus(status);
  }
  ort->ReleaseSessionOptions(options);
  free(path);
  return session;
}

/* Opens the artefacts in their order, until one opens. */
static OrtSession* open_first(OrtEnv* env, const char* bundle, const cJSON* manifest) {
  const cJSON* artefact = NULL;
  cJSON_ArrayForEach(artefact, entry(manifest, "artefacts")) {
    OrtSession* session = open_artefact(env, bundle, artefact);
    if (session) return session;
  }
  fail(bundle, "no model of the bundle opens here");
  return NULL;
}

static size_t count_of(OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  size_t count = 0;
  require(ort->GetTensorTypeAndShape(value, &info));
  require(ort->GetTensorShapeElementCount(info, &count));
  ort->ReleaseTensorTypeAndShapeInfo(info);
  return count;
}

static void* data_of(OrtValue* value) {
  void* data = NULL;
  require(ort->GetTensorMutableData(value, &data));
  return data;
}

static void add_class(cJSON* object, const cJSON* recipe, int64_t index) {
  const cJSON* name = cJSON_GetArrayItem(entry(recipe, "class_names"), (int)index);
  char number[32];
  snprintf(number, sizeof number, "class %lld", (long long)index);
  cJSON_AddStringToObject(object, "class", cJSON_IsString(name) ? name->valuestring : number);
}

static void print_answer(const cJSON* recipe, OrtValue** outputs, int is_detector) {
  const float* boxes = is_detector ? data_of(outputs[2]) : NULL;
  const float* scores = data_of(outputs[0]);
  const int64_t* classes = data_of(outputs[1]);
  cJSON* answer = cJSON_CreateObject();
  cJSON* found = cJSON_AddArrayToObject(answer, is_detector ? "detections" : "classes");
  for (size_t i = 0, count = count_of(outputs[0]); i < count; ++i) {
    cJSON* one = cJSON_CreateObject();
    cJSON_AddItemToArray(found, one);
    if (is_detector) {
      cJSON* box = cJSON_AddArrayToObject(one, "box");
      for (int side = 0; side < 4; ++side)
        cJSON_AddItemToArray(box, cJSON_CreateNumber(round(boxes[4 * i + side] * 100.0) / 100.0));
    }
    cJSON_AddNumberToObject(one, "score", round(scores[i] * 1e4) / 1e4);
    add_class(one, recipe, classes[i]);
    if (!is_detector) cJSON_AddNumberToObject(one, "index", (double)classes[i]);
  }
  char* text = cJSON_PrintUnformatted(answer);
  puts(text);
  free(text);
  cJSON_Delete(answer);
}

/* Returns the picture as (height, width, 3), blue, green, red. */
static uint8_t* read_picture(const char* path, int* height, int* width) {
  uint8_t* pixels = stbi_load(path, width, height, NULL, 3);
  if (!pixels) fail(path, stbi_failure_reason());
  for (size_t i = 0, count = (size_t)*height * (size_t)*width * 3; i < count; i += 3) {
    uint8_t red = pixels[i];
    pixels[i] = pixels[i + 2];
    pixels[i + 2] = red;
  }
  return pixels;
}

int main(int count, char** arguments) {
  if (count != 3) {
    fprintf(stderr, "usage: edgeopt_run BUNDLE PICTURE\n");
    return 2;
  }
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (!ort) fail("libonnxruntime", "older than the headers that this program was built with");
  char* path = join(arguments[1], "manifest.json");
  char* text = read_text(path);
  free(path);
  cJSON* manifest = cJSON_Parse(text);
  if (!manifest) fail("manifest.json", "is no JSON");
  const cJSON* recipe = recipe_of(manifest);

  OrtEnv* env = NULL;
  require(ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "edgeopt_run", &env));
  OrtSession* session = open_first(env, arguments[1], manifest);

  int height = 0, width = 0;
  uint8_t* pixels = read_picture(arguments[2], &height, &width);
  const int64_t shape[] = {height, width, 3};
  OrtMemoryInfo* memory = NULL;
  require(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  OrtValue* input = NULL;
  require(ort->CreateTensorWithDataAsOrtValue(memory, pixels, (size_t)height * (size_t)width * 3, shape, 3,
                                              ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, &input));
  const int is_detector = strcmp(text_of(recipe, "task"), "detection") == 0;
  const char* taken[] = {"frame"};
  const char* given[] = {"scores", "classes", "boxes"};
  OrtValue* outputs[3] = {NULL, NULL, NULL};
  const size_t outputs_count = is_detector ? 3 : 2;
  require(ort->Run(session, NULL, taken, (const OrtValue* const*)&input, 1, given, outputs_count, outputs));
  print_answer(recipe, outputs, is_detector);

  for (size_t i = 0; i < outputs_count; ++i) ort->ReleaseValue(outputs[i]);
  ort->ReleaseValue(input);
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseSession(session);
  ort->ReleaseEnv(env);
  stbi_image_free(pixels);
  cJSON_Delete(manifest);
  free(text);
  return 0;
}
