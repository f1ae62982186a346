"""All physical stores of one Program, and the moves between them. Each move leaves every axis balanced.

Callers have checked feasibility; running out of anything in here is a broken invariant, not a condition.
"""

from __future__ import annotations

from collections.abc import Iterable

from ninfer.runtime.core.program import (
    AxisOccupancy,
    CheckpointHandle,
    Occupancy,
    ProgramLimits,
    SequenceDemand,
    SequenceHandle,
)
from ninfer.runtime.program.checkpoints import Checkpoint
from ninfer.runtime.program.feasibility import Freed, freed
from ninfer.runtime.program.host_arena import Extent, HostArena
from ninfer.runtime.program.images import SlotPool
from ninfer.runtime.program.pages import AddressSpace, HostReplica, LogicalPage, PagePool, PageStore
from ninfer.runtime.program.sequence import ZERO_IMAGE, Sequence, tokens_consumed
from ninfer.runtime.program.transfers import Transfers


def image_slots(limits: ProgramLimits) -> int:
    """Device image slots: a committed and a provisional one per lane, and those of checkpoints."""
    return 2 * limits.max_concurrency + limits.checkpoint_images


class Stores:
    """Pages, images, host memory, active sequences and checkpoints."""

    def __init__(self, limits: ProgramLimits, transfers: Transfers) -> None:
        self._limits = limits
        self.transfers = transfers
        self.pages = PageStore(PagePool(limits.kv_pages))
        self.images = SlotPool(image_slots(limits))
        self.host_images = SlotPool(limits.host_images)
        self.arena = HostArena(limits.host_kv_bytes)
        self.rows = SlotPool(limits.max_concurrency)
        self.sequences: dict[SequenceHandle, Sequence] = {}
        self.checkpoints: dict[CheckpointHandle, Checkpoint] = {}
        self._generation = 0

    # --- sequences --------------------------------------------------------------------------------------

    def open_root(self, demand: SequenceDemand) -> Sequence:
        """A sequence that has consumed nothing, with its full reservation."""
        return self._open(demand, AddressSpace.reserve(self.pages, tokens_consumed(demand)), ZERO_IMAGE)

    def open_from(self, demand: SequenceDemand, source: Checkpoint, consume: bool) -> Sequence:
        """A sequence that continues after `source`, whose pages are on the device; `consume` ends the source."""
        space, tail = AddressSpace.attach(self.pages, source.pages, tokens_consumed(demand))
        if tail is not None:
            copy = space.pages[-1]
            columns = source.pages.columns(len(source.pages.pages) - 1)
            self.transfers.copy_columns(_device(tail), _device(copy), columns)
        image = self._source_image(source, consume)
        if consume:
            self.delete(source)
        return self._open(demand, space, image)

    def release(self, sequence: Sequence) -> None:
        """End a sequence and give everything of it back."""
        del self.sequences[sequence.handle]
        self._free_extents(sequence.space.release())
        if sequence.image != ZERO_IMAGE:
            self.images.give_back(sequence.image)
        self.rows.give_back(sequence.handle.index)

    def freeze(self, sequence: Sequence) -> Checkpoint:
        """A checkpoint of the sequence's committed state; the sequence goes on."""
        image = self.images.take()
        self.transfers.copy_image(sequence.image, image)
        return self._publish(sequence, image)

    def retain(self, sequence: Sequence) -> Checkpoint:
        """Turn a finished sequence into a checkpoint: its image is moved, unused pages are given back."""
        checkpoint = self._publish(sequence, sequence.image)
        sequence.image = ZERO_IMAGE
        self.release(sequence)
        return checkpoint

    # --- checkpoints ------------------------------------------------------------------------------------

    def delete(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint and everything only it needed."""
        del self.checkpoints[checkpoint.handle]
        self._free_extents(self.pages.drop(checkpoint.pages.pages, checkpoint))
        if checkpoint.device_image is not None:
            self.images.give_back(checkpoint.device_image)
        if checkpoint.host_image is not None:
            self.host_images.give_back(checkpoint.host_image)

    def store(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Take checkpoints off the device together: transfer what the host lacks, verify, then free the device side.

        Pages that an active sequence or another device-resident checkpoint holds stay where they are.
        """
        leaving = tuple(checkpoints)
        effect = freed((), leaving)
        self._store_pages(effect)
        for checkpoint in leaving:
            self._store_image(checkpoint)
        for page in effect.device_pages:
            assert page.host_covers(page.columns), "a page left without a replica"
            self.pages.pool.give_back(_device(page))
            page.device = None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Give every page of a checkpoint a device replica again; the host replicas stay."""
        missing = tuple(checkpoint.pages.missing())
        self.pages.pool.reserve(len(missing))
        for page, columns in missing:
            assert page.host is not None, "a checkpoint is complete somewhere"
            assert page.host_covers(columns), "a void replica is no replica"
            page.device = self.pages.pool.take()
            self.transfers.unpack_page(page.host.extent, page.device)

    # --- observation ------------------------------------------------------------------------------------

    @property
    def checkpoint_images(self) -> int:
        """Device image slots in use by checkpoints."""
        return sum(checkpoint.device_image is not None for checkpoint in self.checkpoints.values())

    def occupancy(self) -> Occupancy:
        lanes = self._limits.max_concurrency
        lane_images = sum(sequence.image != ZERO_IMAGE for sequence in self.sequences.values())
        return Occupancy(
            (
                self.rows.occupancy("lanes"),
                self.pages.pool.occupancy(),
                _axis("state_images", lanes, lane_images),
                _axis("checkpoint_images", self._limits.checkpoint_images, self.checkpoint_images),
                self.host_images.occupancy("host_images"),
                self.arena.occupancy(),
            )
        )

    def clear(self) -> None:
        """Release everything, whatever state it is in."""
        for sequence in tuple(self.sequences.values()):
            self.release(sequence)
        for checkpoint in tuple(self.checkpoints.values()):
            self.delete(checkpoint)

    # --- details ----------------------------------------------------------------------------------------

    def _open(self, demand: SequenceDemand, space: AddressSpace, image: int) -> Sequence:
        self._generation += 1
        handle = SequenceHandle(self.rows.take(), self._generation)
        sequence = Sequence(handle, demand, space, image)
        self.sequences[handle] = sequence
        return sequence

    def _publish(self, sequence: Sequence, image: int) -> Checkpoint:
        self._generation += 1
        handle = CheckpointHandle(self._generation, self._generation)
        checkpoint = Checkpoint(handle, sequence.identity(), image)
        checkpoint.pages = sequence.space.freeze(checkpoint)
        self.checkpoints[handle] = checkpoint
        return checkpoint

    def _source_image(self, source: Checkpoint, consume: bool) -> int:
        """A lane's own image with the source's contents: moved if the source ends, else copied or loaded."""
        if consume and source.device_image is not None:
            image, source.device_image = source.device_image, None
            return image
        image = self.images.take()
        if source.device_image is not None:
            self.transfers.copy_image(source.device_image, image)
        else:
            assert source.host_image is not None, "a checkpoint has an image somewhere"
            self.transfers.load_image(source.host_image, image)
        return image

    def _store_pages(self, effect: Freed) -> None:
        """One extent for the run; a void replica's extent is given back first."""
        pages = effect.stored_pages
        if not pages:
            return
        self._free_extents([page.host.extent for page in pages if page.host is not None])
        size = self.transfers.page_bytes
        extent = self.arena.allocate(len(pages) * size)
        assert extent is not None, "the host arena has no place for the run"
        self.transfers.pack_pages([_device(page) for page in pages], extent)
        for index, page in enumerate(pages):
            page.host = HostReplica(Extent(extent.begin + index * size, size), page.epoch, page.columns)

    def _store_image(self, checkpoint: Checkpoint) -> None:
        image = checkpoint.device_image
        if image is None:
            return
        if checkpoint.host_image is None:
            checkpoint.host_image = self.host_images.take()
            self.transfers.store_image(image, checkpoint.host_image)
        self.images.give_back(image)
        checkpoint.device_image = None

    def _free_extents(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            self.arena.free(extent)


def _device(page: LogicalPage) -> int:
    assert page.device is not None, "the page is on the device"
    return page.device


def _axis(name: str, capacity: int, allocated: int) -> AxisOccupancy:
    return AxisOccupancy(name, capacity, allocated, 0, capacity - allocated)
