//! Sorts values in pieces, so that a long sort charges for its work and ends at the time limit.

use std::cmp::Ordering;

use super::machine::{JqMachine, JqStop};

/// Items of a piece that is sorted at once. Then neighbouring pieces are merged until one is left.
const PIECE: usize = 1 << 10;

/// Sorts stably. `read_steps` are the steps for reading each item once.
pub(super) fn sort<T>(
    machine: &mut JqMachine,
    items: &mut [T],
    read_steps: u64,
    order: impl Fn(&T, &T) -> Ordering,
) -> Result<(), JqStop> {
    let read_steps_per_item = read_steps.div_ceil(items.len().max(1) as u64);
    // Each level of a sort compares about half of the items.
    let steps = |length: usize, levels: u32| {
        let length = length as u64;
        (length / 2 + length * read_steps_per_item) * u64::from(levels)
    };
    for piece in items.chunks_mut(PIECE) {
        machine.charge_steps(steps(piece.len(), 1 + piece.len().ilog2()))?;
        piece.sort_by(&order);
    }
    let mut length = PIECE;
    while length < items.len() {
        length *= 2;
        for piece in items.chunks_mut(length) {
            machine.charge_steps(steps(piece.len(), 1))?;
            // The standard library merges two sorted halves with one comparison per item.
            piece.sort_by(&order);
        }
    }
    Ok(())
}
