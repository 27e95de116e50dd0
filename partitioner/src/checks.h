/// Argument checks and indexing of the library's entry points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace hpcgnn::volpart {

inline std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

inline void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

inline void require(bool condition, const std::string& message) {
  require(condition, message.c_str());
}

}  // namespace hpcgnn::volpart
