# Finds ONNX Runtime's headers and library, and defines the target `onnxruntime`.
#
#   -DONNXRUNTIME_INCLUDE=/usr/local/include/onnxruntime     the folder of onnxruntime_c_api.h
#   -DONNXRUNTIME_LIBRARY=.../libonnxruntime.so.1.31.1       for example the one in the Python wheel
#
# Headers may be older than the library: a program asks the library for the version of its headers.
find_path(ONNXRUNTIME_INCLUDE onnxruntime_c_api.h PATH_SUFFIXES onnxruntime onnxruntime/core/session)
if(NOT ONNXRUNTIME_INCLUDE)
  message(FATAL_ERROR "onnxruntime_c_api.h not found: install libonnxruntime-dev (Debian 13), or run "
    "examples/onnxruntime_headers.sh /usr/local/include, or pass -DONNXRUNTIME_INCLUDE=FOLDER")
endif()
find_library(ONNXRUNTIME_LIBRARY onnxruntime)
if(NOT ONNXRUNTIME_LIBRARY)
  message(FATAL_ERROR "libonnxruntime not found: install libonnxruntime-dev (Debian 13), or pass "
    "-DONNXRUNTIME_LIBRARY=FILE, for example the one in the wheel: "
    "python -c 'import onnxruntime, pathlib; print(*pathlib.Path(onnxruntime.__file__).parent.glob(\"capi/libonnxruntime.so*\"))'")
endif()
get_filename_component(library_file "${ONNXRUNTIME_LIBRARY}" REALPATH)
if(NOT ANDROID)
  # The wheel holds libonnxruntime.so.1.31.1 alone, but programs ask for libonnxruntime.so.1: a link beside the program.
  file(CREATE_LINK "${library_file}" "${CMAKE_BINARY_DIR}/libonnxruntime.so.1" SYMBOLIC)
  set(library_file "${CMAKE_BINARY_DIR}/libonnxruntime.so.1")
endif()

add_library(onnxruntime SHARED IMPORTED)
set_target_properties(onnxruntime PROPERTIES
  IMPORTED_LOCATION "${library_file}"
  INTERFACE_INCLUDE_DIRECTORIES "${ONNXRUNTIME_INCLUDE}")
