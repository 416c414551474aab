//! Measures programs on objects in the card's memory, beside the card's own copy.
//!
//! A batch is some launches, one for each object, between two events. In each round, the copy and
//! all programs have one batch each, so that a change of the card's clock affects them alike. The
//! copy reads a half of an object's bytes and writes them over the other half, so it moves as many
//! bytes as the program.

use std::cell::Cell;
use std::sync::Arc;

use fieldstone_gpu::Loaded;
use fieldstone_gpu::driver::{Driver, DriverError};

use super::arena::{Arena, ArenaLayout, PLACE_ALIGN_BYTES};
use super::case::Sizes;

/// The times of a case: seconds per object, one value for each round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// The copy.
    pub copy: Vec<f64>,
    /// Each program.
    pub programs: Vec<Vec<f64>>,
    /// Seconds of all batches.
    pub seconds: f64,
}

/// Launches before the first round, so that code and addresses are known to the card.
const WARM_LAUNCHES: u64 = 4;

/// Starts the work on the object at this offset.
type Start<'a> = Box<dyn Fn(&dyn Driver, u64) -> Result<(), DriverError> + 'a>;

/// Measures programs of the same map. `None` if not even one object fits.
///
/// # Errors
/// The card has failed.
pub fn measure(
    arena: &Arena,
    sizes: &Sizes,
    programs: &[Arc<Loaded>],
    rounds: u32,
) -> Result<Option<Times>, DriverError> {
    let half = sizes.moved_bytes() / 2;
    let second_half = half.next_multiple_of(PLACE_ALIGN_BYTES);
    let place_bytes = sizes.moved_bytes().max(second_half + half);
    let cache_bytes = arena.card().info().cache_bytes;
    let Some(layout) = ArenaLayout::new(arena.len_bytes(), cache_bytes, place_bytes) else {
        return Ok(None);
    };
    let Ok(pitch) = u32::try_from(sizes.element_bytes) else { return Ok(None) };
    let copy: Start<'_> = Box::new(|driver, at| {
        driver.copy_within(arena.stream, arena.at(at + second_half), arena.at(at), half)
    });
    let mut contenders = vec![copy];
    for program in programs {
        contenders.push(Box::new(|_, at| {
            let outputs = arena.at(at + sizes.input_bytes());
            program.launch(arena.stream, arena.at(at), outputs, pitch)
        }));
    }
    let next = Cell::new(0);
    let batch = |start: &Start<'_>, launches: u64| {
        let first = next.replace(next.get() + launches);
        arena.time(|driver| {
            (first..first + launches).try_for_each(|launch| start(driver, layout.offset(launch)))
        })
    };
    for start in &contenders {
        batch(start, WARM_LAUNCHES)?;
    }
    let mut found = vec![Vec::new(); contenders.len()];
    let mut total = 0.0;
    for round in 0..rounds as usize {
        for place in 0..contenders.len() {
            let turn = (place + round) % contenders.len();
            let seconds = batch(&contenders[turn], layout.launches)?;
            found[turn].push(seconds / layout.launches as f64);
            total += seconds;
        }
    }
    let mut found = found.into_iter();
    let copy = found.next().unwrap_or_default();
    Ok(Some(Times { copy, programs: found.collect(), seconds: total }))
}
