//! Which links to OSDs move to another core.
//!
//! All links begin on the client's core. There nothing is handed over, so a client that is not busy
//! stays whole, and a request of it waits for no other core. Only when the core is busy, and
//! another one less so, do links move: the CPU time of both cores decides, whatever they spend it
//! on. So the work that a small request makes on the client's core (front-end, layers, image,
//! objecter) counts, and the other images and connections of both cores count, too.
//!
//! Nothing tells the CPU time of one link. It is estimated from its requests and bytes. An estimate
//! that is wrong makes a move too small or too large; the next check corrects that.
//!
//! A move is a reconnection: the requests of the link are sent again. So a move has to gain
//! something ([`WORTH`]), and a check comes only every [`CHECK_PERIOD`].

use fieldstone_crush::OsdId;

use super::places::Traffic;
use crate::Nanos;

/// The time between two checks of the cores' CPU time.
pub(super) const CHECK_PERIOD: Nanos = Nanos::from_ms(200);
/// A client whose links had less work since the last check than this, in ns of estimated CPU time,
/// checks nothing: it is not busy.
pub(super) const CHECK_WORK_NS: u64 = 10_000_000;
/// A core that uses less CPU time than this gives no link away, in ns per second.
const BUSY: u64 = 500_000_000;
/// The least difference between two cores at which a link moves, in ns per second.
const WORTH: u64 = 200_000_000;
/// The most links that move after one check.
const MOVES_MAX: usize = 16;
/// The estimated CPU time of a request on its link, without data: a frame each way, and its share
/// of a send and a receive.
const REQUEST_NS: u64 = 2_000;
/// The estimated CPU time of 16 bytes on a link: copies of the kernel and checksums.
const BYTES_16_NS: u64 = 3;

/// A link, the core that it is on, and what went through it.
pub(super) struct LinkTraffic {
    pub(super) osd: OsdId,
    pub(super) core: usize,
    pub(super) traffic: Traffic,
}

/// The estimated CPU time of what went through a link, in ns.
pub(super) fn cost_ns(Traffic { requests, bytes }: Traffic) -> u64 {
    requests * REQUEST_NS + bytes / 16 * BYTES_16_NS
}

/// The links that should move, each with its new core. `busy` has the CPU time of each core in ns
/// per second; the traffic is that of `period`.
pub(super) fn plan(busy: &[u64], links: &[LinkTraffic], period: Nanos) -> Vec<(OsdId, usize)> {
    let cost = |link: &LinkTraffic| {
        let ns = cost_ns(link.traffic);
        u64::try_from(u128::from(ns) * 1_000_000_000 / u128::from(period.0.max(1)))
            .unwrap_or(u64::MAX)
    };
    let carries = |core: usize| links.iter().any(|link| link.core == core && cost(link) > 0);
    let cores = 0..busy.len();
    let Some(from) = cores.clone().filter(|&core| carries(core)).max_by_key(|&core| busy[core])
    else {
        return Vec::new();
    };
    let Some(to) = cores.min_by_key(|&core| busy[core]) else { return Vec::new() };
    let difference = busy[from].saturating_sub(busy[to]);
    if busy[from] < BUSY || difference < WORTH {
        return Vec::new();
    }
    let mut there: Vec<(u64, OsdId)> = links
        .iter()
        .filter(|link| link.core == from)
        .map(|link| (cost(link), link.osd))
        .filter(|(cost, _)| *cost > 0)
        .collect();
    // The dearest first; of equal ones the lowest number.
    there.sort_unstable_by_key(|&(cost, osd)| (std::cmp::Reverse(cost), osd));
    let mut room = difference / 2;
    let mut moves = Vec::new();
    for &(cost, osd) in &there {
        if cost <= room && moves.len() < MOVES_MAX {
            room -= cost;
            moves.push((osd, to));
        }
    }
    // One link that is dearer than half of the difference may still make it smaller.
    if moves.is_empty()
        && let Some(&(cost, osd)) = there.last()
        && difference.abs_diff(cost.saturating_mul(2)) + WORTH / 2 <= difference
    {
        moves.push((osd, to));
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos(1_000_000_000);

    fn links(of: &[(usize, u64, u64)]) -> Vec<LinkTraffic> {
        let link = |(at, &(core, requests, bytes)): (usize, &(usize, u64, u64))| LinkTraffic {
            osd: OsdId(at as u32),
            core,
            traffic: Traffic { requests, bytes },
        };
        of.iter().enumerate().map(link).collect()
    }

    #[test]
    fn a_core_that_is_not_busy_keeps_its_links() {
        let links = links(&[(0, 10_000, 0), (0, 10_000, 0)]);
        assert!(plan(&[400_000_000, 0], &links, SECOND).is_empty());
        assert!(plan(&[900_000_000, 800_000_000], &links, SECOND).is_empty());
        assert!(plan(&[900_000_000, 800_000_000], &[], SECOND).is_empty());
    }

    #[test]
    fn small_requests_leave_all_links_to_the_other_core() {
        // 170,000 requests per second: most of the core's time is not that of links.
        let links = links(&[(0, 42_500, 0); 4]);
        let moves = plan(&[1_000_000_000, 0], &links, SECOND);
        assert_eq!(moves, [0, 1, 2, 3].map(|osd| (OsdId(osd), 1)));
    }

    #[test]
    fn large_requests_divide_the_links() {
        let links = links(&[(0, 7_000, 7_000 << 17); 4]);
        let moves = plan(&[1_000_000_000, 0], &links, SECOND);
        assert_eq!(moves, [(OsdId(0), 1), (OsdId(1), 1)]);
    }

    #[test]
    fn links_come_back_from_a_core_that_others_need() {
        let links = links(&[(1, 20_000, 0), (1, 20_000, 0), (0, 20_000, 0)]);
        let moves = plan(&[300_000_000, 950_000_000], &links, SECOND);
        assert!(!moves.is_empty() && moves.iter().all(|&(_, core)| core == 0), "{moves:?}");
    }

    #[test]
    fn one_link_that_is_all_the_load_stays() {
        // 80 % of a core for one link: elsewhere it would be the same, on an idle core.
        let one = links(&[(0, 400_000, 0)]);
        assert!(plan(&[820_000_000, 0], &one, SECOND).is_empty());
        // With as much other work on its core, it moves.
        let half = links(&[(0, 240_000, 0)]);
        assert_eq!(plan(&[1_000_000_000, 0], &half, SECOND), [(OsdId(0), 1)]);
    }

    #[test]
    fn the_moves_of_a_look_are_bounded() {
        let links = links(&vec![(0, 1_000, 0); 1_000]);
        assert_eq!(plan(&[1_000_000_000, 0], &links, SECOND).len(), MOVES_MAX);
    }
}
