"""The detector: a pyramid on a backbone's maps, proposals, and heads that name and refine them.

Faster and Mask R-CNN and their cascade, of torchvision's parts. Boxes are pixels of the network's canvas. Inference has
fixed shapes: so many proposals, so many detections, unused ones with the score 0; so it can be exported as it is.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead, concat_box_prediction_layers
from torchvision.ops import MultiScaleRoIAlign, clip_boxes_to_image, nms, roi_align
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool
from torchvision.ops.poolers import initLevelMapper

from tailorvit.portable import Size
from tailorvit.tasks.base import Backbone, TaskNetwork

HEADS = ("faster", "mask", "cascade")
DETECTIONS = 100  # at most for an image, as COCO counts
SCORE = 0.05  # a detection below it is none
OVERLAP = 0.5  # of two boxes of one class that overlap more, one goes
_PROPOSAL_OVERLAP = 0.7
_CANDIDATES = 1000  # boxes that compete for the detections of an image
_STAGES = ((0.5, (10.0, 10.0, 5.0, 5.0)), (0.6, (20.0, 20.0, 10.0, 10.0)), (0.7, (30.0, 30.0, 15.0, 15.0)))
_WEIGHTS = (1.0, 0.5, 0.25)  # of the losses of a cascade's stages (Cai and Vasconcelos, 2018)
_BIN, _MASK_BIN = 7, 14


class Detections(NamedTuple):
    """Of a batch: boxes (B, n, 4), scores and class numbers from 0 on (B, n), mask chances (B, n, 28, 28) or none."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    masks: Tensor | None


class Plan(NamedTuple):
    """Sizes that follow from the canvas and the strides."""

    anchors: tuple[int, ...]  # sides by level
    strides: tuple[int, ...]  # by level, with the coarse one that is added to the backbone's
    proposals: int
    per_level: int  # anchors that compete for the proposals
    sampled: int  # proposals of an image that a training step looks at


def plan_for(canvas: Size, strides: Sequence[int]) -> Plan:
    """Large canvases get the usual sizes (anchors of 8 strides, 1000 proposals), small ones fewer and smaller."""
    levels = (*strides, 2 * strides[-1])
    base = next((b for b in (8, 4) if levels[-1] * b <= min(canvas)), 2)
    proposals = min(max(canvas[0] * canvas[1] // 256, 64), 1024)
    return Plan(tuple(s * base for s in levels), levels, proposals, 2 * proposals, max(32, proposals // 2))


class Anchors(AnchorGenerator):  # type: ignore[misc]  # torchvision has no annotations
    """Anchors at exact strides; torchvision infers strides, which is wrong where a side is no multiple of them."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(tuple((s,) for s in plan.anchors), ((0.5, 1.0, 2.0),) * len(plan.anchors))
        self.strides = plan.strides

    def over(self, canvas: Size) -> Tensor:
        """All anchors of a canvas, (n, 4), level by level."""
        steps = [[torch.tensor(s), torch.tensor(s)] for s in self.strides]
        return torch.cat(self.grid_anchors([[-(-side // s) for side in canvas] for s in self.strides], steps))


class Pool(MultiScaleRoIAlign):  # type: ignore[misc]
    """Features of boxes from the level that suits their size, at exact strides."""

    def __init__(self, strides: Sequence[int], base: int, size: int) -> None:
        super().__init__([str(i) for i in range(len(strides))], size, 2, canonical_scale=28 * base)
        self.scales = [1.0 / s for s in strides]
        first = round(math.log2(strides[0]))
        self.map_levels = initLevelMapper(first, first + len(strides) - 1, canonical_scale=28 * base)

    def fixed(self, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
        """The same for (B, n, 4) boxes with shapes that depend on no value: all levels are read, one is taken."""
        rows = boxes.flatten(0, 1)
        number = torch.arange(len(boxes), device=boxes.device, dtype=boxes.dtype)[:, None].expand(boxes.shape[:2])
        rois = torch.cat([number.reshape(-1, 1), rows], 1)
        level = self.map_levels([rows])
        out = torch.zeros((), device=boxes.device)
        for i, (features, scale) in enumerate(zip(maps, self.scales)):
            of_level = roi_align(features, rois, self.output_size, scale, self.sampling_ratio)
            out = out + of_level * (level == i)[:, None, None, None]
        return out


class FloatHead(RPNHead):  # type: ignore[misc]
    """Whether there is something at an anchor, and where; in 32 bits, since 16 would move boxes by pixels."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """By level."""
        found, moves = super().forward(x)
        return [t.float() for t in found], [t.float() for t in moves]


class SharedMoves(nn.Module):
    """Classes of a box and one refinement for all of them, repeated for each, as the other heads give it."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(width, classes)
        self.bbox_pred = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (n, classes) and moves (n, 4 * classes)."""
        return self.cls_score(x), self.bbox_pred(x).repeat(1, self.cls_score.out_features)


def group_norm(channels: int) -> nn.GroupNorm:
    """A norm that does not depend on the batch, which may hold one image."""
    return nn.GroupNorm(math.gcd(32, channels), channels)


class Detector(TaskNetwork):
    """Faster R-CNN ("faster"), with masks ("mask"), or three stages of refinement with masks if there are any."""

    def __init__(self, backbone: Backbone, classes: int, canvas: Size, head: str, masks: bool, width: int) -> None:
        super().__init__()
        self.backbone, self.classes, self.canvas, self.head = backbone, classes, canvas, head
        self.width = width
        self.plan = plan_for(canvas, backbone.strides)
        base = self.plan.anchors[0] // self.plan.strides[0]
        self.pyramid = FeaturePyramidNetwork(list(backbone.channels), width, LastLevelMaxPool(), group_norm)
        anchors = Anchors(self.plan)
        counts = {"training": self.plan.proposals, "testing": self.plan.proposals}
        rpn_head = FloatHead(width, anchors.num_anchors_per_location()[0])
        self.rpn: Any = RegionProposalNetwork(anchors, rpn_head, 0.7, 0.3, 256, 0.5, counts, counts, _PROPOSAL_OVERLAP)
        self.anchors: Tensor
        self.register_buffer("anchors", anchors.over(canvas), persistent=False)
        self.stages = nn.ModuleList(
            RoIHeads(
                Pool(backbone.strides, base, _BIN),
                TwoMLPHead(width * _BIN**2, 4 * width),
                (SharedMoves if head == "cascade" else FastRCNNPredictor)(4 * width, classes + 1),
                overlap,
                overlap,
                self.plan.sampled,
                0.25,
                weights,
                SCORE,
                OVERLAP,
                DETECTIONS,
            )
            for overlap, weights in (_STAGES if head == "cascade" else _STAGES[:1])
        )
        self.mask_pool = Pool(backbone.strides, base, _MASK_BIN) if masks else None
        self.mask_head: nn.Module | None = None
        if masks:
            convolutions = MaskRCNNHeads(width, [width] * 4, 1, group_norm)
            self.mask_head = nn.Sequential(convolutions, MaskRCNNPredictor(width, width, classes + 1))

    @property
    def settings(self) -> dict[str, Any]:
        """All but the weights."""
        return {
            "classes": self.classes,
            "canvas": list(self.canvas),
            "head": self.head,
            "masks": self.mask_head is not None,
            "width": self.width,
        }

    def maps(self, x: Tensor) -> list[Tensor]:
        """The pyramid, the finest first; the last level is only for proposals."""
        named = OrderedDict((str(i), m) for i, m in enumerate(self.backbone(x)))
        return list(self.pyramid(named).values())

    # -- training -----------------------------------------------------------------------------------------------------

    def loss(self, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a batch: the sum of :meth:`losses`."""
        return torch.stack(list(self.losses(x, y, target).values())).sum()

    def losses(self, x: Tensor, y: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Loss by its part; random samples of anchors and proposals come from torch's generator."""
        maps = self.maps(x)
        objects = [{"boxes": rows[rows[:, 0] > 0, 1:].float(), "labels": rows[rows[:, 0] > 0, 0].long()} for rows in y]
        found, moves = self.rpn.head(maps)
        everywhere = [self.anchors] * len(x)
        labels, matched = self.rpn.assign_targets_to_anchors(everywhere, objects)
        flat_found, flat_moves = concat_box_prediction_layers(found, moves)
        objectness, shift = self.rpn.compute_loss(
            flat_found, flat_moves, labels, self.rpn.box_coder.encode(matched, everywhere)
        )
        out = {"proposal": objectness, "proposal_box": shift}
        with torch.no_grad():
            boxes, valid = self.proposals(found, moves)
        proposals = [b[v] for b, v in zip(boxes, valid)]
        by_name = {str(i): m for i, m in enumerate(maps)}
        shapes = [self.canvas] * len(x)
        chosen: list[Tensor] = []
        numbers: list[Tensor] = []
        stages: Any = self.stages
        for k, (stage, weight) in enumerate(zip(stages, _WEIGHTS)):
            chosen, numbers, labels, targets = stage.select_training_samples(proposals, objects)
            logits, boxes_of = self._judged(stage, by_name, chosen, shapes)
            classes, box = fastrcnn_loss(logits, boxes_of, labels, targets)
            out[f"class_{k + 1}"], out[f"box_{k + 1}"] = weight * classes, weight * box
            if k + 1 < len(self.stages):
                with torch.no_grad():
                    moved = self._moved(stage.box_coder, boxes_of, torch.cat(chosen))
                    proposals = [_solid(b) for b in moved.split([len(c) for c in chosen])]
        if self.mask_head is not None:
            out["mask"] = self._mask_loss(by_name, chosen, numbers, labels, objects, target, y, shapes)
        return out

    def _judged(
        self, stage: Any, maps: dict[str, Tensor], boxes: list[Tensor], shapes: list[Size]
    ) -> tuple[Tensor, Tensor]:
        logits, moves = stage.box_predictor(stage.box_head(stage.box_roi_pool(maps, boxes, shapes)))
        return logits.float(), moves.float()

    def _moved(self, coder: BoxCoder, moves: Tensor, boxes: Tensor) -> Tensor:
        """Boxes refined by moves that all classes share, cut to the canvas."""
        out: Tensor = clip_boxes_to_image(coder.decode_single(moves[:, :4], boxes), self.canvas)
        return out

    def _mask_loss(
        self,
        maps: dict[str, Tensor],
        boxes: list[Tensor],
        numbers: list[Tensor],
        labels: list[Tensor],
        objects: list[dict[str, Tensor]],
        target: Tensor,
        y: Tensor,
        shapes: list[Size],
    ) -> Tensor:
        """Masks of the proposals that hold an object, against the object's own seen through the proposal."""
        assert self.mask_head is not None and self.mask_pool is not None
        good = [torch.where(of > 0)[0] for of in labels]
        held = [b[i] for b, i in zip(boxes, good)]
        logits: Tensor = self.mask_head(self.mask_pool(maps, held, shapes)).float()
        if not len(logits):
            return logits.sum() * 0
        true = []
        for image, (rows, box, number, at) in enumerate(zip(y, held, numbers, good)):
            own = objects[image]["boxes"][number[at]] if len(box) else box
            frames = target[image][rows[:, 0] > 0][number[at]] if len(box) else target[image][:0]
            side = float(target.shape[-1])
            corner, span = own[:, :2].repeat(1, 2), (own[:, 2:] - own[:, :2]).repeat(1, 2)
            seen = (box - corner) / span * side  # the proposal in pixels of the object's frame
            # One pixel of nothing around a frame: beyond an object's box there is no object, and reading there repeats
            # the border otherwise.
            rois = torch.cat([torch.arange(len(box), device=box.device)[:, None].float(), seen + 1], 1)
            true.append(
                roi_align(F.pad(frames.float()[:, None], (1, 1, 1, 1)), rois, logits.shape[-1], 1.0, -1, True)[:, 0]
            )
        kinds = torch.cat([of[i] for of, i in zip(labels, good)])
        mine = logits[torch.arange(len(logits), device=logits.device), kinds]
        return F.binary_cross_entropy_with_logits(mine, torch.cat(true).clamp(0, 1))

    # -- inference ----------------------------------------------------------------------------------------------------

    def proposals(self, found: Sequence[Tensor], moves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Boxes (B, proposals, 4) where something may be, the likeliest first, and which of them are in use."""
        per_level, flat = [f.flatten(1).shape[1] for f in found], []
        for f, m in zip(found, moves):
            flat.append(concat_box_prediction_layers([f], [m]))
        batch = len(found[0])
        boxes, scores, levels = [], [], []
        for i, ((score, move), of_level) in enumerate(zip(flat, self.anchors.split(per_level))):
            top = min(self.plan.per_level, per_level[i])
            best, at = score.detach().reshape(batch, -1).topk(top, 1)
            chosen = move.detach().reshape(batch, -1, 4).gather(1, at[..., None].expand(-1, -1, 4))
            decoded = self.rpn.box_coder.decode_single(chosen.reshape(-1, 4), of_level[at].reshape(-1, 4))
            boxes.append(clip_boxes_to_image(decoded, self.canvas).reshape(batch, top, 4))
            scores.append(best.sigmoid())
            levels.append(torch.full_like(best, i))
        kept = [
            _keep(*rows, self.plan.proposals, _PROPOSAL_OVERLAP, max(self.canvas))
            for rows in zip(torch.cat(boxes, 1), torch.cat(scores, 1), torch.cat(levels, 1))
        ]
        return torch.stack([k[0] for k in kept]), torch.stack([k[1] > 0 for k in kept])

    def forward(self, x: Tensor, fixed: bool = False) -> Detections:
        """Detections, the surest first. ``fixed`` reads features in fixed shapes: slower, the same, for exporting."""
        maps = self.maps(x)
        found, moves = self.rpn.head(maps)
        boxes, valid = self.proposals(found, moves)
        chances: list[Tensor] = []
        batch, count = boxes.shape[:2]
        shifts = boxes
        stages: Any = self.stages
        for k, stage in enumerate(stages):
            features = self._features(stage.box_roi_pool, maps, boxes, fixed)
            logits, of_class = stage.box_predictor(stage.box_head(features))
            chances.append(logits.float().softmax(-1))
            shifts = of_class.float()
            if k + 1 < len(self.stages):
                moved = self._moved(stage.box_coder, shifts, boxes.flatten(0, 1))
                boxes = _solid(moved).reshape(batch, count, 4)
        chance = torch.stack(chances).mean(0).reshape(batch, count, -1)[..., 1:]
        coder = stages[-1].box_coder
        options = coder.decode_single(shifts, boxes.flatten(0, 1)).reshape(batch, count, -1, 4)[:, :, 1:]
        options = clip_boxes_to_image(options, self.canvas)
        chance = torch.where(valid[..., None] & (chance > SCORE), chance, 0.0)
        kept = [self._chosen(o, c) for o, c in zip(options, chance)]
        boxes, scores, labels = (torch.stack([k[i] for k in kept]) for i in range(3))
        masks = None
        if self.mask_head is not None and self.mask_pool is not None:
            logits = self.mask_head(self._features(self.mask_pool, maps, boxes, fixed)).float().sigmoid()
            at = (labels.flatten() + 1)[:, None, None, None].expand(-1, 1, *logits.shape[-2:])
            masks = logits.gather(1, at).reshape(batch, -1, *logits.shape[-2:])
        return Detections(boxes, scores, labels, masks)

    def _features(self, pool: Any, maps: Sequence[Tensor], boxes: Tensor, fixed: bool) -> Tensor:
        out: Tensor = (
            pool.fixed(maps, boxes)
            if fixed
            else pool({str(i): m for i, m in enumerate(maps)}, list(boxes), [self.canvas] * len(boxes))
        )
        return out

    def _chosen(self, boxes: Tensor, chance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The detections of an image, from boxes (n, classes, 4) and chances (n, classes)."""
        score, at = chance.flatten().topk(min(_CANDIDATES, chance.numel()))
        label = at % chance.shape[1]
        return _keep(boxes.reshape(-1, 4)[at], score, label, DETECTIONS, OVERLAP, max(self.canvas))


def _solid(boxes: Tensor) -> Tensor:
    """Boxes of at least a pixel each way, so that what is read of them is defined."""
    corner, span = boxes[..., :2], (boxes[..., 2:] - boxes[..., :2]).clamp(min=1)
    return torch.cat([corner, corner + span], -1)


def _keep(
    boxes: Tensor, scores: Tensor, groups: Tensor, count: int, overlap: float, side: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The best ``count`` boxes, of which none overlaps a better one of its group; the score 0 fills up.

    Only the list of survivors has a length that depends on values; it marks them in tensors of fixed length.
    """
    solid = ((boxes[:, 2:] - boxes[:, :2]) > 1e-2).all(1)
    scores = torch.where(solid, scores, 0.0)
    apart = boxes + (groups.to(boxes) * (side + 1))[:, None]  # groups do not overlap
    alive = torch.zeros_like(scores).scatter(0, nms(apart, scores, overlap), 1.0)
    best, at = (scores * alive).topk(min(count, len(scores)))
    spare = count - len(best)
    out = (boxes[at] * (best > 0)[:, None], best, groups[at] * (best > 0))
    if spare <= 0:
        return out
    return F.pad(out[0], (0, 0, 0, spare)), F.pad(out[1], (0, spare)), F.pad(out[2], (0, spare))
