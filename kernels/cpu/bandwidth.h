// How fast this machine reads memory: what decoding is bounded by.
#pragma once

namespace cherenkov::cpu {

// Bytes a second that `threads` read together from a buffer larger than caches, over about an eighth of a second. Other
// programs only ever make it less; the windows are short, and their 90th percentile is taken, so that a busy machine
// shows what its memory can do. Throws std::bad_alloc if there is no memory for the buffer.
double read_bandwidth(int threads);

}  // namespace cherenkov::cpu
