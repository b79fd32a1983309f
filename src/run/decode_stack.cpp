// Compares the op list of a block with the one form that the kernels know.
#include "src/run/decode_stack.h"

namespace fewbit {
namespace {

// The ops of a block in the order in which the kernels run them. read() is false where the list is another.
struct StackForm {
  const Norm *input = nullptr, *middle = nullptr;
  const Linears *qkv = nullptr, *out = nullptr, *wide = nullptr, *down = nullptr;
  const HeadNorm *q_norm = nullptr, *k_norm = nullptr;
  const Rope* rope = nullptr;
  const Attention* attention = nullptr;
  const GatedAct* act = nullptr;
  const Moe* moe = nullptr;  // in place of wide, act and down

  bool read(const std::vector<BlockOp>& block) {
    size_t at = 0;
    const auto next = [&]<class Op>(const Op*& op) {
      op = at < block.size() ? std::get_if<Op>(&block[at]) : nullptr;
      at += op != nullptr;
      return op != nullptr;
    };
    const AddTo *first = nullptr, *second = nullptr;
    if (!next(input) || !next(qkv)) return false;
    if (next(q_norm) && !next(k_norm)) return false;
    if (!next(rope) || !next(attention) || !next(out) || !next(first) || !next(middle)) return false;
    if (!next(moe) && !(next(wide) && next(act) && next(down))) return false;
    return next(second) && at == block.size() && slots_fit(*first, *second) && sizes_fit() && (!moe || plain_mixture());
  }

 private:
  bool slots_fit(const AddTo& first, const AddTo& second) const {
    const auto outs = [](const Linears& l, const std::vector<Slot>& slots) {
      std::vector<Slot> found;
      found.reserve(l.items.size());
      for (const LinearDef& item : l.items) found.push_back(item.out);
      return found == slots;
    };
    const auto residual = [&](const Norm& n, const Linears& reads) { return n.in == Slot::x && reads.in == n.out; };
    const auto added = [&](const Linears& l, const AddTo& add) {
      return l.items.size() == 1 && add.in == l.items[0].out && add.out == Slot::x && add.factor == 1;
    };
    const bool mlp = moe ? middle->in == Slot::x && moe->in == middle->out && second.in == moe->out &&
                               second.out == Slot::x && second.factor == 1
                         : residual(*middle, *wide) && added(*down, second) && outs(*wide, {act->gate, act->up}) &&
                               down->in == act->out;
    return mlp && residual(*input, *qkv) && added(*out, first) &&
           outs(*qkv, {attention->q, attention->k, attention->v}) &&
           rope->slots == std::vector<Slot>{attention->q, attention->k} && out->in == attention->out &&
           (!q_norm || (q_norm->slot == attention->q && k_norm->slot == attention->k));
  }
  // Chosen by the softmax of the router's logits alone, weighted behind their answers.
  bool plain_mixture() const {
    return moe->gated() && moe->all_own() && !moe->router.empty() && !moe->router_bias && !moe->weigh_inputs &&
           moe->score == RouterScore::softmax && moe->groups == 1 && moe->correction.empty() &&
           moe->router_in == Slot::count && moe->logit_scale == 1 && moe->swiglu_limit == 0 &&
           moe->expert_scale.empty();
  }
  bool sizes_fit() const {
    return !rope->neighbours && attention->sinks.empty() && attention->chunk == 0 && input->kind != NormKind::layer &&
           input->kind == middle->kind && input->eps == middle->eps && rope->head_dim == attention->head_dim &&
           (!q_norm || (q_norm->kind == input->kind && k_norm->kind == input->kind && q_norm->eps == k_norm->eps));
  }
};

struct Layer {
  const BlockWeights& weights;
  bool known = true;  // all linears asked for so far are of kinds that the kernels may take
  DecodeLinear linear(const Linears& op, size_t item) { return linear(op.items[item].name); }
  DecodeLinear linear(const std::string& name) {
    const Linear& l = weights.linears.at(name);
    if (const auto* m = std::get_if<MarlinLinear>(&l)) return view_of(*m);
    if (const auto* b = std::get_if<ByteLinear>(&l))
      return ByteView{.w = {.codes = b->codes, .scales = b->scales}, .input = b->input};
    known = false;
    return {};
  }
  ConstTensorView bias(const Linears& op, size_t item) const { return bias(op.items[item].name); }
  ConstTensorView bias(const std::string& name) const {
    const Linear& l = weights.linears.at(name);
    return std::visit([](const auto& any) { return any.bias.empty() ? ConstTensorView{} : ConstTensorView(any.bias); },
                      l);
  }
  ConstTensorView vector(const std::string& name) const { return weights.vectors.at(name); }
  DecodeMixture mixture(const Moe& op) {
    DecodeMixture m{.router = vector(op.router)};
    for (int e = 0; e < op.experts; ++e)
      for (const auto& [def, to] : {std::pair{&op.gate, &m.gate}, {&op.up, &m.up}, {&op.down, &m.down}}) {
        const std::string name = op.of_expert(*def, e).name;
        to->push_back(linear(name));
        known = known && !bias(name).data;
      }
    return m;
  }
};

}  // namespace

std::optional<DecodeStack> decode_stack(Exec& ex, const ModelSpec& spec, const std::vector<BlockWeights>& blocks,
                                        const RopeTables& ropes, const std::vector<KvCache>& caches,
                                        const DecodePeer& peer, bool turned_keys, bool attention_apart,
                                        std::string* why) {
  const auto refuse = [&](const char* reason) { return *why = reason, std::nullopt; };
  StackForm f;
  if (!caches.empty() && caches[0].k.dtype == DType::u8) return refuse("a cache of 4 bits");
  if (spec.kinds.size() != 1 || !f.read(spec.kinds[0]))
    return refuse("another list of ops, or blocks of several kinds");
  // The launch sums both or neither of the two products whose outputs are added to the stream.
  if (f.out->summed != peer.present() || (f.down && f.down->summed != peer.present()))
    return refuse("sums over the ranks lie between the ops");
  const Attention& a = *f.attention;
  const DecodeForm form{
      .attention = args_of(a),
      .rope = {.inv_freq = ropes.inv_freq(*f.rope),
               .attention_scale = f.rope->params.attention_scale,
               .hadamard = turned_keys},
      .eps = f.input->eps,
      .head_eps = f.q_norm ? f.q_norm->eps : 0,
      .weight_offset = weight_offset(f.input->kind),
      .act = act_kind(f.moe ? f.moe->act : f.act->act),
      .top_k = f.moe ? f.moe->top_k : 0,
      .renormalise = f.moe && f.moe->renormalise,
      .scaling = f.moe ? f.moe->scaling : 1,
      .attention_apart = attention_apart,
      .peer = peer,
  };
  std::vector<DecodeLayer> layers;
  for (size_t i = 0; i < blocks.size(); ++i) {
    Layer w{blocks[i]};
    DecodeLayer l{.input_norm = w.vector(f.input->name), .middle_norm = w.vector(f.middle->name), .cache = caches[i]};
    l.q = w.linear(*f.qkv, 0), l.k = w.linear(*f.qkv, 1), l.v = w.linear(*f.qkv, 2);
    l.o = w.linear(*f.out, 0);
    if (f.moe)
      l.mixture = w.mixture(*f.moe);
    else
      l.gate = w.linear(*f.wide, 0), l.up = w.linear(*f.wide, 1), l.down = w.linear(*f.down, 0);
    if (!w.known) return refuse("linears that are neither packed in the Marlin layout nor in bytes, or biased experts");
    for (const auto& [op, item] : {std::pair{f.out, 0}, {f.wide, 0}, {f.wide, 1}, {f.down, 0}})
      if (op && w.bias(*op, static_cast<size_t>(item)).data) return refuse("a bias outside of q, k and v");
    l.q_bias = w.bias(*f.qkv, 0), l.k_bias = w.bias(*f.qkv, 1), l.v_bias = w.bias(*f.qkv, 2);
    if (f.q_norm) l.q_norm = w.vector(f.q_norm->name), l.k_norm = w.vector(f.k_norm->name);
    layers.push_back(std::move(l));
  }
  if (*why = refuses_stack(ex, layers, form); !why->empty()) return std::nullopt;
  return make_stack(ex, std::move(layers), form);
}

}  // namespace fewbit
