// A host thread as a group (see rows.cuh).
#pragma once
#include "../numbers.cuh"

namespace TL_NAMESPACE {

// A group of one warp of one lane.
struct HostThread {
  static int rank() { return 0; }
  static int size() { return 1; }
  static int warp() { return 0; }
  static int warps() { return 1; }
  static int lane() { return 0; }
  static int lanes() { return 1; }
  static void sync() {}
  static u64 warp_max(u64 v) { return v; }
  static u64 warp_sum(u64 v) { return v; }
  static u64 warp_scan(u64 v) { return v; }
  static u64 last_lane(u64 v) { return v; }
  static void add(u64* counter, u64 v) { *counter += v; }
};

}  // namespace TL_NAMESPACE
