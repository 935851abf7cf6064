// What a product may go through on its way out.

METAL_FUNC float sigmoid(float x) {
  const float e = exp(-fabs(x));
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

METAL_FUNC float silu(float x) { return x * sigmoid(x); }

METAL_FUNC float softplus(float x) { return max(x, 0.0f) + log(1.0f + exp(-fabs(x))); }

// 0: as it is, 1: silu(scale x), 2: 2 sigmoid(scale x).
METAL_FUNC float activated(float x, float kind, float scale) {
  return kind == 1.0f ? silu(scale * x) : kind == 2.0f ? 2.0f * sigmoid(scale * x) : x;
}
