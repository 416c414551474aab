//! What this benchmark needs of crate gpu beyond a card and its driver.

use std::sync::Arc;

use fieldstone_accel::Device;
use fieldstone_buf::AlignedBuf;
use fieldstone_gf::LinearMap;
use fieldstone_gpu::driver::{DriverError, Rows};
use fieldstone_gpu::program::{Method, Tuning};
use fieldstone_gpu::{Card, GpuDevice, LoadError, Loaded, Policy};

/// A queue of jobs on a card, which takes all jobs whatever their size.
///
/// # Errors
/// The card has failed or has too little memory.
pub fn open(card: &Arc<Card>) -> Result<Box<dyn Device>, DriverError> {
    Ok(Box::new(GpuDevice::with_policy(card, Policy::everything(card))?))
}

/// A buffer in memory that the card reads and writes directly. `None` if there is no more of it.
pub fn host_buffer(card: &Arc<Card>, len_bytes: usize) -> Option<AlignedBuf> {
    card.host_buffer(len_bytes)
}

/// Rows that follow each other in the host's memory and have a distance on the card.
pub fn rows(row_bytes: usize, rows: usize, card_pitch: usize) -> Rows {
    Rows { row_bytes, rows, host_pitch: row_bytes, card_pitch }
}

/// The program of a map with one method alone.
///
/// # Errors
/// The map is too large, or the card has failed.
pub fn with_method(card: &Card, map: &LinearMap, method: Method) -> Result<Loaded, LoadError> {
    Loaded::new(card, map, &Tuning { method: Some(method), ..Tuning::default() })
}

#[cfg(test)]
mod tests {
    use fieldstone_gpu::model::{Faults, Model};

    use super::super::arena::Arena;
    use super::super::case::{Case, Codings, Part, Work};
    use super::super::check::check;
    use super::super::host::{Host, Limits};
    use super::super::on_card;
    use super::*;

    fn card(faults: Faults) -> (Arc<Card>, Arena) {
        let card = Card::with_driver(Arc::new(Model::new(faults))).expect("a card");
        let arena = Arena::with_bytes(&card, 6 << 20).expect("memory");
        (card, arena)
    }

    fn case(work: Work, code: &'static str) -> Case {
        Case { part: Part::Card, work, code, object_bytes: 64 << 10 }
    }

    #[test]
    fn programs_of_every_work_are_checked_and_measured() {
        let (card, arena) = card(Faults::default());
        let mut codings = Codings::default();
        for case in [case(Work::Encode, "rs:4+2"), case(Work::Rebuild, "clay:4+2")] {
            let coding = codings.get(&case).expect("a map");
            let chosen = card.program(&coding.map).expect("a program");
            check(&arena, &coding.map, &chosen, 43).expect("the right bytes");
            let single = with_method(&card, &coding.map, Method::Planes).expect("a program");
            check(&arena, &coding.map, &single, 43).expect("the right bytes");
            let sizes = coding.sizes(case.object_bytes);
            let times = on_card::measure(&arena, &sizes, &[chosen, single.into()], 1);
            let times = times.expect("no fault").expect("it fits");
            assert_eq!((times.copy.len(), times.programs.len()), (1, 2));
            let large = coding.sizes(16 << 20);
            assert_eq!(on_card::measure(&arena, &large, &[], 1), Ok(None), "no room");
        }
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let (card, arena) = card(Faults { corrupt_at_launch: Some(1), ..Faults::default() });
        let coding = Codings::default().get(&case(Work::Encode, "rs:4+2")).expect("a map");
        let program = card.program(&coding.map).expect("a program");
        let error = check(&arena, &coding.map, &program, 43).expect_err("one byte is wrong");
        assert!(error.to_string().contains("other bytes than the CPU"), "{error}");
    }

    #[test]
    fn jobs_on_data_of_the_host_are_measured() {
        let (card, arena) = card(Faults { delay: 2, ..Faults::default() });
        let limits = Limits {
            flight_bytes: 200 << 10,
            output_bytes: 64 << 10,
            pass_bytes: 256 << 10,
            software_bytes: 128 << 10,
        };
        let mut host = Host::open(&card, limits).expect("memory");
        let coding = Codings::default().get(&case(Work::Encode, "rs:4+2")).expect("a map");
        let sizes = coding.sizes(64 << 10);
        let times = host.measure(&arena, &coding.map, &sizes, 2).expect("no fault");
        let times = times.expect("it fits");
        assert_eq!(times.in_flight, 3);
        assert_eq!([times.device.len(), times.link.len(), times.software.len()], [2; 3]);
        let times = host.measure(&arena, &coding.map, &coding.sizes(1 << 20), 2);
        assert_eq!(times.expect("no fault"), None, "no room");
    }
}
