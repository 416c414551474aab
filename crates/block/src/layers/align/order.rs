//! The order of requests that overlap: which waits for which.
//!
//! A request is *exclusive* (a read-modify-write) or *shared* (an aligned change). Of two requests
//! that overlap, the later waits for the earlier, unless both are shared.
//!
//! # Segments
//!
//! A request that waits for another waits for all that the other waits for. So a new request need
//! not wait for all earlier ones that it overlaps, only for the last of them at each place. The
//! ranges of the requests are cut into segments. A segment names its last exclusive request, and
//! the shared requests that came after it. Each request that it names covers the whole segment.
//!
//! ```text
//!  bytes        0 ........... 4096 ........... 8192 ........... 12288
//!  exclusive          3                 5
//!  shared             4               6, 7              7
//! ```
//!
//! - An exclusive request waits for all names in its segments, and takes their place.
//! - A shared request waits for the exclusive names, and the segment names it in addition to the
//!   other shared ones.
//!
//! The order ends where a request ends: a name of a request that has ended counts for nothing. The
//! names stay until a request touches their segment, until all requests have ended, or until the
//! segments have doubled in number: then the dead ones are swept out.
//!
//! # Bounds
//!
//! The cost of a request is that of a few searches in a tree, on average over the requests: each
//! request that it waits for, and each segment that it removes, was paid for when it was made.
//!
//! - A segment names at most [`SHARED_MAX`] shared requests. Beyond that they form a *group*, which
//!   ends with the last of them, and the segment names the group. A segment that is cut in two
//!   makes a group of its shared requests first, so that no list is copied.
//! - A shared request that covers more than [`COVERS_MAX`] segments takes their place, as an
//!   exclusive one does. So later shared requests wait for it, where they need not.
//!
//! The number of segments is at most twice that of the live ones, and a request makes at most
//! 2 · [`COVERS_MAX`] + 3 of those.
//!
//! # Requests from before the order
//!
//! The layer keeps no order while there are no exclusive requests. Those shared ones that run when
//! it begins are in a list apart ([`Order::enter_running`]). An exclusive request looks at all that
//! have not ended.

use std::collections::BTreeMap;

use slab::Slab;
use smallvec::{SmallVec, smallvec};

use super::Span;

/// The most shared requests that a segment names.
const SHARED_MAX: usize = 4;
/// The most segments that name a shared request in addition to others.
const COVERS_MAX: usize = 8;
/// Fewer segments are not swept.
const SWEEP_MIN: usize = 64;

/// How a request uses its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Alone.
    Exclusive,
    /// At the same time as other shared requests.
    Shared,
}

/// Names a request, or a group of requests. A later request may have the same slot: `seq` differs.
#[derive(Clone, Copy)]
struct Name {
    slot: usize,
    seq: u64,
}

/// A request, or a group of shared ones.
struct Node<T> {
    /// In the order of arrival.
    seq: u64,
    /// The number of requests and groups that must end first.
    waits_for: usize,
    /// The slots of those that wait for this one.
    followers: SmallVec<[usize; 2]>,
    is_group: bool,
    /// What the layer keeps here until the request may start.
    held: Option<T>,
}

struct Segment {
    end: u64,
    exclusive: Option<Name>,
    shared: SmallVec<[Name; SHARED_MAX]>,
}

/// The order of the requests that have not ended; see the module's text.
pub(super) struct Order<T> {
    nodes: Slab<Node<T>>,
    segments: BTreeMap<u64, Segment>,
    running: Vec<(Span, Name)>,
    next_seq: u64,
    /// The number of segments at which the dead ones are swept out.
    sweep_at: usize,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self {
            nodes: Slab::new(),
            segments: BTreeMap::new(),
            running: Vec::new(),
            next_seq: 0,
            sweep_at: SWEEP_MIN,
        }
    }
}

impl<T> Order<T> {
    /// A request has come that uses `span`. Gives its place in the order, and whether it has to
    /// wait. Then the caller says with [`Order::hold`] what waits.
    pub(super) fn arrive(&mut self, span: Span, how: Use) -> (usize, bool) {
        if self.segments.len() >= self.sweep_at {
            self.sweep();
        }
        self.cut_at(span.start);
        self.cut_at(span.end);
        let me = self.add(false);
        let covered = self.segments.range(span.start..span.end).take(COVERS_MAX + 1).count();
        if how == Use::Shared && covered <= COVERS_MAX {
            self.stand_beside(me, span);
        } else {
            self.replace(me, span);
        }
        if how == Use::Exclusive {
            self.follow_running(me, span);
        }
        (me.slot, self.nodes[me.slot].waits_for > 0)
    }

    /// A shared request runs already. Gives its place in the order.
    pub(super) fn enter_running(&mut self, span: Span) -> usize {
        let me = self.add(false);
        self.running.push((span, me));
        me.slot
    }

    /// Keeps what the request at this place is, until it may start.
    pub(super) fn hold(&mut self, place: usize, what: T) {
        self.nodes[place].held = Some(what);
    }

    /// The request at this place has ended. Gives those that may start now, in the order of their
    /// arrival: their places, and what was held there.
    pub(super) fn end(&mut self, place: usize) -> Vec<(usize, T)> {
        let mut ready: SmallVec<[(u64, usize); 4]> = SmallVec::new();
        let mut ended: SmallVec<[usize; 4]> = smallvec![place];
        while let Some(slot) = ended.pop() {
            for follower in self.nodes.remove(slot).followers {
                let node = &mut self.nodes[follower];
                node.waits_for -= 1;
                if node.waits_for > 0 {
                    continue;
                }
                match node.is_group {
                    true => ended.push(follower),
                    false => ready.push((node.seq, follower)),
                }
            }
        }
        if self.nodes.is_empty() {
            self.segments.clear();
            self.running.clear();
            self.sweep_at = SWEEP_MIN;
        }
        ready.sort_unstable();
        let held = |(_, slot): (u64, usize)| {
            (slot, self.nodes[slot].held.take().expect("what waits is held"))
        };
        ready.into_iter().map(held).collect()
    }

    fn add(&mut self, is_group: bool) -> Name {
        let seq = self.next_seq;
        self.next_seq += 1;
        let followers = SmallVec::new();
        let node = Node { seq, waits_for: 0, followers, is_group, held: None };
        Name { slot: self.nodes.insert(node), seq }
    }

    fn is_live(nodes: &Slab<Node<T>>, name: Name) -> bool {
        nodes.get(name.slot).is_some_and(|node| node.seq == name.seq)
    }

    /// `me` waits for `other`, unless that has ended.
    fn follow(nodes: &mut Slab<Node<T>>, me: Name, other: Name) {
        if Self::is_live(nodes, other) {
            nodes[other.slot].followers.push(me.slot);
            nodes[me.slot].waits_for += 1;
        }
    }

    /// Makes `at` a border of segments.
    fn cut_at(&mut self, at: u64) {
        let Some((&start, segment)) = self.segments.range(..at).next_back() else { return };
        if segment.end <= at {
            return;
        }
        self.group(start);
        let segment = self.segments.get_mut(&start).expect("it was found");
        let behind = Segment {
            end: segment.end,
            exclusive: segment.exclusive,
            shared: segment.shared.clone(),
        };
        segment.end = at;
        self.segments.insert(at, behind);
    }

    /// Forgets the names of ended requests in the segment at `start`, and makes one group of the
    /// shared requests that are left, if there are several.
    fn group(&mut self, start: u64) {
        let segment = self.segments.get_mut(&start).expect("the caller has seen it");
        segment.shared.retain(|name| Self::is_live(&self.nodes, *name));
        if segment.shared.len() < 2 {
            return;
        }
        let members = std::mem::take(&mut segment.shared);
        let group = self.add(true);
        for member in members {
            Self::follow(&mut self.nodes, group, member);
        }
        self.segments.get_mut(&start).expect("as above").shared.push(group);
    }

    /// Adds a shared request to the segments of `span`, whose ends are borders of segments.
    fn stand_beside(&mut self, me: Name, span: Span) {
        let inside = self.segments.range(span.start..span.end);
        let inside: SmallVec<[(u64, u64); COVERS_MAX]> =
            inside.map(|(start, segment)| (*start, segment.end)).collect();
        let mut at = span.start;
        for (start, end) in inside {
            self.fill(me, at, start);
            at = end;
            if self.segments[&start].shared.len() >= SHARED_MAX {
                self.group(start);
            }
            let segment = self.segments.get_mut(&start).expect("it was found");
            segment.shared.push(me);
            if let Some(exclusive) = segment.exclusive {
                Self::follow(&mut self.nodes, me, exclusive);
            }
        }
        self.fill(me, at, span.end);
    }

    /// Makes a segment of a range that has none.
    fn fill(&mut self, me: Name, start: u64, end: u64) {
        if start < end {
            self.segments.insert(start, Segment { end, exclusive: None, shared: smallvec![me] });
        }
    }

    /// Puts a request in the place of all others in `span`, whose ends are borders of segments.
    fn replace(&mut self, me: Name, span: Span) {
        while let Some((&start, _)) = self.segments.range(span.start..span.end).next() {
            let segment = self.segments.remove(&start).expect("it was found");
            for other in segment.exclusive.into_iter().chain(segment.shared) {
                Self::follow(&mut self.nodes, me, other);
            }
        }
        let segment = Segment { end: span.end, exclusive: Some(me), shared: SmallVec::new() };
        self.segments.insert(span.start, segment);
    }

    fn follow_running(&mut self, me: Name, span: Span) {
        let nodes = &mut self.nodes;
        self.running.retain(|(other, name)| {
            if other.overlaps(span) {
                Self::follow(nodes, me, *name);
            }
            Self::is_live(nodes, *name)
        });
    }

    /// Forgets the segments whose requests have all ended.
    fn sweep(&mut self) {
        let nodes = &self.nodes;
        self.segments.retain(|_, segment| {
            let mut names = segment.exclusive.iter().chain(&segment.shared);
            names.any(|name| Self::is_live(nodes, *name))
        });
        self.sweep_at = SWEEP_MIN.max(2 * self.segments.len());
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// A request as the rule of the module's text sees it.
    struct Known {
        span: Span,
        how: Use,
        place: usize,
        runs: bool,
    }

    impl Known {
        fn orders(&self, span: Span, how: Use) -> bool {
            self.span.overlaps(span) && (self.how == Use::Exclusive || how == Use::Exclusive)
        }
    }

    /// How the ranges of a run are drawn.
    struct Shape {
        places: u64,
        longest: u64,
        exclusive: f64,
        live: usize,
    }

    /// Runs random requests, and compares each that waits or starts with the rule. If `exact`, no
    /// request waits where the rule lets it start. Gives the number of requests that waited.
    fn compare(seed: u64, shape: &Shape, exact: bool) -> usize {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut order: Order<u64> = Order::default();
        let mut live: BTreeMap<u64, Known> = BTreeMap::new();
        let mut waited = 0;
        for id in 0..400 {
            let start = random.random_range(0..shape.places);
            let len = random.random_range(1..=shape.longest);
            let span = Span { start: start * 4096, end: (start + len) * 4096 };
            let how = match random.random_bool(shape.exclusive) {
                true => Use::Exclusive,
                false => Use::Shared,
            };
            // The order begins with requests that run.
            let (place, waits) = match id < 5 {
                true => (order.enter_running(span), false),
                false => order.arrive(span, how),
            };
            let how = if id < 5 { Use::Shared } else { how };
            let must = id >= 5 && live.values().any(|known| known.orders(span, how));
            assert!(waits == must || (waits && !exact), "seed {seed}: {id} waits: {waits}");
            if waits {
                order.hold(place, id);
                waited += 1;
            }
            live.insert(id, Known { span, how, place, runs: !waits });
            while live.len() > shape.live || (id == 399 && !live.is_empty()) {
                let runs: Vec<u64> =
                    live.iter().filter(|(_, known)| known.runs).map(|(id, _)| *id).collect();
                assert!(!runs.is_empty(), "seed {seed}: none runs");
                let ends = runs[random.random_range(0..runs.len())];
                let place = live.remove(&ends).expect("it runs").place;
                let started = order.end(place);
                assert!(started.is_sorted_by_key(|(_, id)| *id), "seed {seed}");
                for (place, id) in started {
                    let known = live.get_mut(&id).expect("it waited");
                    assert!(!std::mem::replace(&mut known.runs, true) && known.place == place);
                }
                for (id, known) in &live {
                    let mut before = live.range(..id);
                    let must = before.any(|(_, other)| other.orders(known.span, known.how));
                    assert!(!(known.runs && must), "seed {seed}: {id} has started too soon");
                    assert!(known.runs || must || !exact, "seed {seed}: {id} waits for none");
                }
            }
        }
        assert!(order.nodes.is_empty() && order.segments.is_empty() && order.running.is_empty());
        waited
    }

    #[test]
    fn requests_wait_for_those_that_the_rule_names() {
        let mut waited = 0;
        for seed in 0..300 {
            let live = [2, 8, 40][seed as usize % 3];
            // Eight segments or fewer: a shared request never takes their place.
            let shape = Shape { places: 5, longest: 3, exclusive: 0.4, live };
            waited += compare(seed, &shape, true);
        }
        assert!(waited > 10_000, "{waited}");
    }

    #[test]
    fn no_request_starts_too_soon_among_long_ones() {
        for seed in 0..300 {
            let exclusive = [0.05, 0.3, 0.8][seed as usize % 3];
            let shape = Shape { places: 60, longest: 60, exclusive, live: 50 };
            compare(seed, &shape, false);
        }
    }

    #[test]
    fn the_order_of_a_deep_queue_stays_small() {
        const REQUESTS: u64 = 20_000;
        // (the range of a request, how it uses the range)
        type Draw = fn(u64) -> (Span, Use);
        let same: Draw = |_| (Span { start: 0, end: 4096 }, Use::Exclusive);
        let mixed: Draw = |id| {
            let how = if id % 2 == 0 { Use::Exclusive } else { Use::Shared };
            (Span { start: 0, end: 4096 }, how)
        };
        // Wide requests over narrow ones, cut at ever other places.
        let wide: Draw = |id| match id % 3 {
            0 => (Span { start: id * 4096, end: (id + 1) * 4096 }, Use::Exclusive),
            1 => (Span { start: 0, end: (id + 9) * 4096 }, Use::Shared),
            _ => (Span { start: id * 2048, end: (id + 100_000) * 4096 }, Use::Shared),
        };
        for draw in [same, mixed, wide] {
            let mut order: Order<u64> = Order::default();
            let mut runs = std::collections::VecDeque::new();
            for id in 0..REQUESTS {
                let (span, how) = draw(id);
                let (place, waits) = order.arrive(span, how);
                match waits {
                    true => order.hold(place, id),
                    false => runs.push_back(place),
                }
            }
            let edges: usize = order.nodes.iter().map(|(_, node)| node.followers.len()).sum();
            let size = [edges, order.nodes.len(), order.segments.len()];
            assert!(size.iter().all(|count| *count < 20 * REQUESTS as usize), "{size:?}");
            let mut ended = 0;
            while let Some(place) = runs.pop_front() {
                runs.extend(order.end(place).into_iter().map(|(place, _)| place));
                ended += 1;
            }
            assert_eq!(ended, REQUESTS);
        }
    }
}
