"""Made-up state dicts with the names and shapes of the released ones, and forward passes written from the papers.

The references share no code with the package: they say a second time what the released networks compute.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F


def _random(shapes, seed=0):
    """Weights at which every part matters; norms near one."""
    noise = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        fan = shape[-1] if len(shape) == 2 else 16
        state[name] = torch.randn(shape, generator=noise) * (0.3 if len(shape) == 1 else fan**-0.5)
        if "norm" in name and name.endswith("weight"):
            state[name] += 1
    return state


def _layer(name, rows, columns=None):
    return {f"{name}.weight": (rows,) if columns is None else (rows, columns), f"{name}.bias": (rows,)}


# -- AutoFormer -------------------------------------------------------------------------------------------------------


def autoformer_shapes(heads=4, depth=14, ratio=4, head_dim=64, side=14, patch=16, channels=3, classes=1000, reach=14):
    """A released supernet: its width is heads * head_dim, whatever the largest choice is."""
    d, table = heads * head_dim, (2 * reach + 2, head_dim)
    shapes = {
        "pos_embed": (1, side * side + 1, d),
        "cls_token": (1, 1, d),
        "patch_embed_super.proj.weight": (d, channels, patch, patch),
        "patch_embed_super.proj.bias": (d,),
    }
    for i in range(depth):
        inside = {
            **_layer("attn.qkv", 3 * d, d),
            **{f"attn.rel_pos_embed_{a}.embeddings_table_{w}": table for a in "kv" for w in "vh"},
            **_layer("attn.proj", d, d),
            **_layer("attn_layer_norm", d),
            **_layer("ffn_layer_norm", d),
            **_layer("fc1", int(ratio * d), d),
            **_layer("fc2", d, int(ratio * d)),
        }
        shapes |= {f"blocks.{i}.{k}": v for k, v in inside.items()}
    return {**shapes, **_layer("norm", d), **_layer("head", classes, d)}


def autoformer_state(seed=0, **sizes):
    return _random(autoformer_shapes(**sizes), seed)


def subnet_state(state, arch, head_dim):
    """The same names at the shapes of one sub-network, as a retrained one may be saved."""
    d, small = arch.one("embed"), {}
    for name, tensor in state.items():
        kind = name.partition(".")[2].partition(".")[2] if name.startswith("blocks.") else name
        block = int(name.split(".")[1]) if name.startswith("blocks.") else 0
        if name.startswith("blocks.") and block >= arch.one("depth"):
            continue
        q, h = arch.many("heads")[block] * head_dim, int(d * arch.many("mlp")[block])
        cut = {
            "attn.qkv.weight": (3 * q, d),
            "attn.qkv.bias": (3 * q,),
            "attn.proj.weight": (d, q),
            "fc1.weight": (h, d),
            "fc1.bias": (h,),
            "fc2.weight": (d, h),
            "head.weight": (None, d),
            "head.bias": (None,),
            "pos_embed": (1, None, d),
            "cls_token": (1, 1, d),
        }.get(kind, (None, None) if "embeddings_table" in kind else (d,))
        small[name] = tensor[tuple(slice(n) for n in cut)].clone()
    return small


def autoformer_reference(state, x, arch, head_dim, patch):
    """One sub-network, block by block: prefixes of everything, interleaved Q-K-V rows, bias in order, 2-D offsets."""
    d = arch.one("embed")

    def norm(y, name):
        return F.layer_norm(y, (d,), state[f"{name}.weight"][:d], state[f"{name}.bias"][:d], 1e-5)

    y = F.conv2d(x, state["patch_embed_super.proj.weight"][:d], state["patch_embed_super.proj.bias"][:d], patch)
    side = y.shape[-1]
    y = torch.cat([state["cls_token"][..., :d].expand(len(x), 1, d), y.flatten(2).transpose(1, 2)], 1)
    y = y + state["pos_embed"][..., :d]
    for i, (heads, ratio) in enumerate(zip(arch.many("heads"), arch.many("mlp"), strict=True)):
        at, q, h = f"blocks.{i}.", heads * head_dim, int(d * ratio)
        z, w, b = norm(y, f"{at}attn_layer_norm"), state[f"{at}attn.qkv.weight"], state[f"{at}attn.qkv.bias"]
        # Row 3r + t of the layer is row r of part t; the bias is read straight on.
        parts = [torch.stack([z @ w[3 * r + t, :d] for r in range(q)], -1) + b[t * q : (t + 1) * q] for t in range(3)]
        queries, keys, values = (p.unflatten(-1, (heads, head_dim)).transpose(1, 2) for p in parts)
        relative = [_offsets(state, f"{at}attn.rel_pos_embed_{a}.embeddings_table_", side) for a in "kv"]
        logits = torch.einsum("bhid,bhjd->bhij", queries, keys) + torch.einsum("bhid,ijd->bhij", queries, relative[0])
        weights = (logits * head_dim**-0.5).softmax(-1)
        out = torch.einsum("bhij,bhjd->bhid", weights, values) + torch.einsum("bhij,ijd->bhid", weights, relative[1])
        out = out.transpose(1, 2).flatten(2)
        y = y + out @ state[f"{at}attn.proj.weight"][:d, :q].T + state[f"{at}attn.proj.bias"][:d]
        z = norm(y, f"{at}ffn_layer_norm")
        z = F.gelu(z @ state[f"{at}fc1.weight"][:h, :d].T + state[f"{at}fc1.bias"][:h])
        y = y + z @ state[f"{at}fc2.weight"][:d, :h].T + state[f"{at}fc2.bias"][:d]
    pooled = norm(y, "norm")[:, 1:].mean(1)
    return pooled @ state["head.weight"][:, :d].T + state["head.bias"]


def _offsets(state, name, side):
    """(N, N, head_dim): the table rows of every pair of tokens, row 0 for pairs with the class token."""
    vertical, horizontal = state[f"{name}v"], state[f"{name}h"]
    rows, columns = _pairs(side, len(vertical) // 2 - 1)
    return vertical[rows] + horizontal[columns]


@cache
def _pairs(side, reach):
    n, tables = side * side, []
    for axis in (0, 1):
        place = [divmod(i, side)[axis] for i in range(n)]
        rows = [[0, *(max(-reach, min(reach, b - a)) + reach + 1 for b in place)] for a in place]
        tables.append(torch.tensor([[0] * (n + 1), *rows]))
    return tables


# -- S3 ---------------------------------------------------------------------------------------------------------------


def s3_shapes(dims, depths, heads, windows, ratio=4, head_dim=32, side=56, patch=4, classes=1000):
    """The released S3 (and Swin) names; windows are clipped to the map, and buffers are saved with the weights."""
    shapes = {"patch_embed.proj.weight": (dims[0], 3, patch, patch), "patch_embed.proj.bias": (dims[0],)}
    shapes |= _layer("patch_embed.norm", dims[0])
    for s, d in enumerate(dims):
        here = side // 2**s
        w, h = min(windows[s], here), int(d * ratio)
        for i in range(depths[s]):
            inside = {
                **_layer("norm1", d),
                "attn.relative_position_bias_table": ((2 * w - 1) ** 2, heads[s]),
                "attn.relative_position_index": (w * w, w * w),
                **_layer("attn.qkv", 3 * heads[s] * head_dim, d),
                **_layer("attn.proj", d, d),
                **_layer("norm2", d),
                **_layer("mlp.fc1", h, d),
                **_layer("mlp.fc2", d, h),
            }
            if i % 2 and w < here:
                inside["attn_mask"] = ((here // w) ** 2, w * w, w * w)
            shapes |= {f"layers.{s}.blocks.{i}.{k}": v for k, v in inside.items()}
        if s < len(dims) - 1:
            shapes[f"layers.{s}.downsample.reduction.weight"] = (dims[s + 1], 4 * d)
            shapes |= _layer(f"layers.{s}.downsample.norm", 4 * d)
    return {**shapes, **_layer("norm", dims[-1]), **_layer("head", classes, dims[-1])}


def s3_state(seed=0, **sizes):
    state = _random(s3_shapes(**sizes), seed)
    for name in state:  # buffers of another kind, never to be mistaken for weights
        if name.endswith("index"):
            state[name] = torch.zeros(state[name].shape, dtype=torch.long)
    return state


def s3_reference(state, x, depths, heads, windows, head_dim, patch):
    """The four stages, one window after another; pairs that were not neighbours before the shift get -100."""

    def norm(y, name):
        return F.layer_norm(y, y.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)

    def linear(y, name):
        return F.linear(y, state[f"{name}.weight"], state.get(f"{name}.bias"))

    y = F.conv2d(x, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], patch)
    y = norm(y.permute(0, 2, 3, 1), "patch_embed.norm")
    for s, depth in enumerate(depths):
        side = y.shape[1]
        w = min(windows[s], side)
        for i in range(depth):
            at, shift = f"layers.{s}.blocks.{i}.", w // 2 if i % 2 and w < side else 0
            z = norm(y, f"{at}norm1").roll((-shift, -shift), (1, 2))
            out = torch.zeros_like(y)
            for top in range(0, side, w):
                for left in range(0, side, w):
                    box = z[:, top : top + w, left : left + w].flatten(1, 2)
                    qkv = linear(box, f"{at}attn.qkv").unflatten(-1, (3, heads[s], head_dim))
                    q, k, v = (qkv[:, :, t].transpose(1, 2) for t in range(3))
                    logits = q @ k.transpose(-2, -1) * head_dim**-0.5
                    logits = logits + _window_bias(state[f"{at}attn.relative_position_bias_table"], w)
                    logits = logits + _apart(top, left, w, side, shift)
                    mixed = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)
                    out[:, top : top + w, left : left + w] = linear(mixed, f"{at}attn.proj").unflatten(1, (w, w))
            y = y + out.roll((shift, shift), (1, 2))
            z = F.gelu(linear(norm(y, f"{at}norm2"), f"{at}mlp.fc1"))
            y = y + linear(z, f"{at}mlp.fc2")
        if s < len(depths) - 1:
            four = [y[:, r::2, c::2] for c in (0, 1) for r in (0, 1)]
            name = f"layers.{s}.downsample"
            y = linear(norm(torch.cat(four, -1), f"{name}.norm"), f"{name}.reduction")
    return linear(norm(y, "norm").mean((1, 2)), "head")


def _window_bias(table, w):
    places = [(r, c) for r in range(w) for c in range(w)]
    rows = [[(a[0] - b[0] + w - 1) * (2 * w - 1) + a[1] - b[1] + w - 1 for b in places] for a in places]
    return table[torch.tensor(rows)].permute(2, 0, 1)


def _apart(top, left, w, side, shift):
    """-100 for pairs whose places lay on different sides of the border before the roll."""
    if not shift:
        return 0.0

    def region(n):
        return 0 if n < side - w else 1 if n < side - shift else 2

    regions = torch.tensor([(region(r), region(c)) for r in range(top, top + w) for c in range(left, left + w)])
    return -100.0 * (regions[:, None] != regions[None]).any(-1).float()
