#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/reference.h"

namespace regroup::reference {
namespace {

// As transformers: norms, softmax and loss in fp32 whatever the weights are.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normed = wide * at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + eps);
  return normed.to(x.scalar_type()) * weight;
}

// x [b, heads, T, d] turned by its positions; halves are paired, as HF stores rotary weights.
at::Tensor Rotate(const at::Tensor& x, double theta) {
  const int64_t length = x.size(2);
  const int64_t half = x.size(3) / 2;
  const at::Tensor frequencies =
      at::pow(theta, at::arange(half, at::kDouble) * (-1.0 / static_cast<double>(half)));
  const at::Tensor angles =
      at::outer(at::arange(length, at::kDouble), frequencies).to(at::kFloat);  // [T, half]
  const at::Tensor cosine = angles.cos().to(x.scalar_type());
  const at::Tensor sine = angles.sin().to(x.scalar_type());
  const at::Tensor low = x.narrow(3, 0, half);
  const at::Tensor high = x.narrow(3, half, half);
  return at::cat({low * cosine - high * sine, high * cosine + low * sine}, 3);
}

at::Tensor Attention(const Llama& model, const Weights& weights, const std::string& prefix,
                     const at::Tensor& x) {
  const int64_t rows = x.size(0);
  const int64_t length = x.size(1);
  const auto project = [&](const std::string& name, int64_t heads) {
    return at::matmul(x, weights.at(prefix + name).t())
        .view({rows, length, heads, model.head_dim})
        .transpose(1, 2);
  };
  const int64_t repeat = model.heads / model.kv_heads;
  const at::Tensor query = Rotate(project("q_proj.weight", model.heads), model.rope_theta);
  const at::Tensor key = Rotate(project("k_proj.weight", model.kv_heads), model.rope_theta)
                             .repeat_interleave(repeat, 1);
  const at::Tensor value = project("v_proj.weight", model.kv_heads).repeat_interleave(repeat, 1);
  const at::Tensor mask =
      at::full({length, length}, -std::numeric_limits<float>::infinity()).triu(1);
  const at::Tensor scores =
      at::matmul(query, key.transpose(2, 3)) / std::sqrt(static_cast<double>(model.head_dim)) +
      mask;  // fp32
  const at::Tensor mixed = at::matmul(at::softmax(scores, -1).to(x.scalar_type()), value)
                               .transpose(1, 2)
                               .reshape({rows, length, model.heads * model.head_dim});
  return at::matmul(mixed, weights.at(prefix + "o_proj.weight").t());
}

at::Tensor FeedForward(const Weights& weights, const std::string& prefix, const at::Tensor& x) {
  const at::Tensor gate = at::silu(at::matmul(x, weights.at(prefix + "gate_proj.weight").t()));
  const at::Tensor up = at::matmul(x, weights.at(prefix + "up_proj.weight").t());
  return at::matmul(gate * up, weights.at(prefix + "down_proj.weight").t());
}

}  // namespace

at::Tensor LlamaLogits(const Llama& model, const Weights& weights, const at::Tensor& tokens) {
  const at::Tensor& embedding = weights.at("model.embed_tokens.weight");
  at::Tensor x =
      embedding.index_select(0, tokens.flatten()).view({tokens.size(0), tokens.size(1), -1});
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    x = x + Attention(model, weights, prefix + "self_attn.",
                      RmsNorm(x, weights.at(prefix + "input_layernorm.weight"), model.eps));
    x = x +
        FeedForward(weights, prefix + "mlp.",
                    RmsNorm(x, weights.at(prefix + "post_attention_layernorm.weight"), model.eps));
  }
  x = RmsNorm(x, weights.at("model.norm.weight"), model.eps);
  return at::matmul(x, (model.tied ? embedding : weights.at("lm_head.weight")).t());
}

at::Tensor LlamaLoss(const Llama& model, const Weights& weights, const at::Tensor& tokens,
                     const at::Tensor& targets) {
  const at::Tensor logprobs =
      at::log_softmax(LlamaLogits(model, weights, tokens).to(at::kFloat), -1);
  return -logprobs.gather(-1, targets.unsqueeze(-1)).mean();
}

at::Tensor LlamaRowsLoss(const Llama& model, const Weights& weights,
                         const std::vector<MaskedRow>& rows) {
  at::Tensor sum = at::zeros({}, at::kFloat);
  int64_t count = 0;
  for (const MaskedRow& row : rows) {
    if (row.tokens.size() < 2) continue;
    const at::Tensor logprobs = at::log_softmax(
        LlamaLogits(model, weights, at::tensor(row.tokens).unsqueeze(0)).to(at::kFloat), -1)[0];
    for (size_t i = 1; i < row.tokens.size(); ++i) {
      if (!row.counts[i]) continue;
      sum = sum - logprobs[static_cast<int64_t>(i) - 1][row.tokens[i]];
      ++count;
    }
  }
  return sum / count;
}

at::Tensor MlpLoss(int64_t layers, const Weights& weights, const at::Tensor& inputs,
                   const at::Tensor& targets) {
  at::Tensor x = inputs.to(weights.begin()->second.scalar_type());
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    x = at::matmul(x, weights.at(prefix + "weight").t()) + weights.at(prefix + "bias");
    if (layer + 1 < layers) x = at::relu(x);
  }
  return (x.to(at::kFloat) - targets).pow(2).mean();
}

at::Tensor LogProbs(const Llama& model, const Weights& weights,
                    const std::vector<int64_t>& tokens) {
  const c10::NoGradGuard no_grad;
  return at::log_softmax(
      LlamaLogits(model, weights, at::tensor(tokens).unsqueeze(0)).to(at::kFloat), -1)[0];
}

Continuation GenerateGreedy(const Llama& model, const Weights& weights, std::vector<int64_t> prompt,
                            int64_t max_tokens, const std::vector<int64_t>& stop) {
  Continuation result;
  while (static_cast<int64_t>(result.tokens.size()) < max_tokens) {
    const auto [values, ids] = at::topk(LogProbs(model, weights, prompt)[-1], 2);
    const int64_t token = ids[0].item<int64_t>();
    result.tokens.push_back(token);
    result.logprobs.push_back(values[0].item<double>());
    result.gaps.push_back((values[0] - values[1]).item<double>());
    prompt.push_back(token);
    if (std::find(stop.begin(), stop.end(), token) != stop.end()) break;
  }
  return result;
}

}  // namespace regroup::reference
