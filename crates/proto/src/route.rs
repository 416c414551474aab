//! Routes: how the nodes of a write pass it on to each other.
//!
//! A writer may send a write to each of its replicas itself. That is the *flat* strategy, and such
//! a request has no route. With any other strategy the writer sends the write once, to the first
//! replica, the *head*. The request's route says which nodes are the replicas, and each node passes
//! the request on to its children. The network-accelerated DFS paper (section V) calls these fields
//! the write request header: strategy, virtual rank, and replica coordinates.
//!
//! | strategy  | who gets the write from whom, with replicas 0 to 6                            |
//! |-----------|-------------------------------------------------------------------------------|
//! | `ring`    | 0 → 1 → 2 → 3 → 4 → 5 → 6 (the paper's ring; DeLiBA-2, section 5.2, steps 1-6) |
//! | `tree`    | 0 → 1, 2; 1 → 3, 4; 2 → 5, 6 (the paper's pipelined binary tree)               |
//! | `primary` | 0 → 1, 2, 3, 4, 5, 6 (primary copy as in Ceph)                                 |
//!
//! A long write may come in fragments, and then a node passes on each fragment when it has it
//! ([`crate::fragments`]).
//!
//! A node's place in the route is its *rank*. Children always have a higher rank than their parent,
//! and no node has two ranks. So a route has no cycle, whatever a client writes into it.
//!
//! # Passes
//! A write that a node passes on may arrive late: after the writer has given up waiting for it,
//! sent the same bytes itself, and written other bytes to the same place. So a node takes a write
//! from another node only if it carries the *pass* that the writer announced last on its own
//! connection to this node ([`crate::RequestBody::AdmitRelays`]). The writer announces a new pass
//! when it gives up a write that was passed on, before it sends anything else. Without a connection
//! of the writer, a node takes no write from other nodes.
//!
//! # Streamed parity
//! A write of a data shard may leave the coding to the nodes: TriEC, as the paper streams it
//! (section VI-B). The route is then a *primary* one from the data node to the parity nodes, and
//! has a [`Column`]. The data node passes on what its bytes contribute to each parity shard. A
//! parity node adds up the contributions of all columns, and writes the sum.
//!
//! # Parity that a data node passes on
//! A writer that makes the parity itself may send a data shard and parity shards of its stripe to
//! the data node in one request: the write flow of DeLiBA-2 (section 5.3, Figure 10). The route is
//! then a *primary* one from the data node to the parity nodes, and its content is
//! [`Content::Parts`]. The data node writes the first part and passes each other part on. A parity
//! node sees an ordinary write of its shard.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use bytes::Bytes;

use crate::column::{Column, Factors};
use crate::fragments::Fragments;
use crate::ids::{NodeIndex, ShardIndex};

/// The most replicas of a route.
pub const REPLICAS_MAX: usize = 16;

/// The longest address of a replica, in bytes. The path of a unix socket has at most 107.
pub const ADDRESS_BYTES_MAX: usize = 120;

/// The longest wait of a route's head, in milliseconds. A longer one counts as this one: what
/// waits holds a part of the node that all writers share.
pub const WAIT_MS_MAX: u32 = 10_000;

/// How a write reaches its replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// The writer sends the write to each replica.
    #[default]
    Flat,
    /// Each replica passes the write on to the next one.
    Ring,
    /// Each replica passes the write on to two others.
    Tree,
    /// The first replica passes the write on to all others.
    Primary,
}

impl Strategy {
    /// Every strategy, in the order of their numbers on the wire.
    pub const ALL: [Strategy; 4] = [Self::Flat, Self::Ring, Self::Tree, Self::Primary];

    /// Its name, as on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::Primary => "primary",
        }
    }

    /// The ranks to which rank `rank` of `count` replicas passes the write on.
    #[must_use]
    pub fn children(self, rank: usize, count: usize) -> Range<usize> {
        let (first, end) = match self {
            Self::Flat => (count, count),
            Self::Ring => (rank + 1, rank + 2),
            Self::Tree => (2 * rank + 1, 2 * rank + 3),
            Self::Primary if rank == 0 => (1, count),
            Self::Primary => (count, count),
        };
        first.min(count)..end.min(count)
    }

    /// The longest way from rank `rank` down, in steps from node to node; 0 without children.
    #[must_use]
    pub fn depth(self, rank: usize, count: usize) -> u32 {
        // In every strategy the first child's way down is one of the longest.
        let mut steps = 0;
        let mut children = self.children(rank, count);
        while !children.is_empty() {
            steps += 1;
            children = self.children(children.start, count);
        }
        steps
    }

    /// Rank `rank` and all ranks behind it: those that get nothing if `rank` gets nothing.
    #[must_use]
    pub fn subtree(self, rank: usize, count: usize) -> Vec<usize> {
        let mut ranks = vec![rank];
        let mut next = 0;
        while let Some(&parent) = ranks.get(next) {
            ranks.extend(self.children(parent, count));
            next += 1;
        }
        ranks
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text names no strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no way to replicate: it is flat, ring, tree or primary")]
pub struct UnknownStrategy(String);

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        let found = Self::ALL.into_iter().find(|strategy| strategy.name() == text);
        found.ok_or_else(|| UnknownStrategy(text.to_owned()))
    }
}

/// The writer's permission to take its writes from other nodes. The writer counts passes up, so it
/// never uses one twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pass(pub u64);

/// The coordinates of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    /// The node.
    pub node: NodeIndex,
    /// The pass that the writer announced to it.
    pub pass: Pass,
    /// The shard that it writes, if the write is one of a shard.
    pub shard: ShardIndex,
    /// Where its process listens: `unix:PATH` or `tcp:IP:PORT`. Empty for a node of the same
    /// process.
    pub address: Bytes,
}

/// The way of a write through its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Never flat in a request: [`Route::check`] refuses it.
    pub strategy: Strategy,
    /// The rank of the node that gets this request.
    pub rank: u8,
    /// How long the head waits for the answers of the replicas behind it, in milliseconds; at most
    /// [`WAIT_MS_MAX`] counts.
    pub wait_ms: u32,
    /// The replicas by rank.
    pub replicas: Vec<Replica>,
    /// What each replica writes.
    pub content: Content,
    /// How the payload comes.
    pub fragments: Fragments,
}

/// What the replicas of a route write, as compared with the payload that the head gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// All replicas write the payload.
    #[default]
    Same,
    /// The nodes make the parity. The head writes the payload, a piece of a data shard. The other
    /// replicas are parity nodes. Each gets the payload's contribution to its shard, and writes the
    /// sum of what it gets from all data nodes.
    Column(Column),
    /// Each replica writes a part of its own. The payload has these parts one behind the other, by
    /// rank, all of the same length. The checksums are in the same order. Only the head gets such a
    /// request. Each other replica gets its part, and a route whose content is [`Content::Same`].
    Parts,
}

/// Who makes the parity of new segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Encode {
    /// The volume.
    #[default]
    Client,
    /// The nodes, as they store the data.
    Stream,
}

impl Encode {
    /// Every way.
    pub const ALL: [Encode; 2] = [Self::Client, Self::Stream];

    /// Its name, as on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Stream => "stream",
        }
    }
}

impl fmt::Display for Encode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text names no way to make parity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no way to encode: it is client or stream")]
pub struct UnknownEncode(String);

impl FromStr for Encode {
    type Err = UnknownEncode;

    fn from_str(text: &str) -> Result<Self, UnknownEncode> {
        let found = Self::ALL.into_iter().find(|encode| encode.name() == text);
        found.ok_or_else(|| UnknownEncode(text.to_owned()))
    }
}

/// Why a node refuses a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// It has no replicas, or too many.
    #[error("a route has 1 to {REPLICAS_MAX} replicas")]
    Count,
    /// The rank is not one of the replicas.
    #[error("the rank is not one of the route's replicas")]
    Rank,
    /// The node at the rank is another one.
    #[error("the route's rank is that of {0}")]
    NotHere(NodeIndex),
    /// A node has two ranks.
    #[error("{0} is in the route twice")]
    Twice(NodeIndex),
    /// An address is too long.
    #[error("an address is longer than {ADDRESS_BYTES_MAX} bytes")]
    Address,
    /// The strategy passes nothing on.
    #[error("the strategy of a route cannot be flat")]
    Flat,
    /// The column is none of the stripe's, or does not fit the route.
    #[error(
        "the column has a number below the count, factors or a whole table for each parity node, \
         and a route straight to them; only a data node gets a table"
    )]
    Column,
    /// The parts of the payload have no receivers, or the request is not that of the head.
    #[error(
        "a payload in parts goes to the head of a primary route, and has a part for one other node \
         or more"
    )]
    Parts,
}

impl Route {
    /// Checks the route as `node` gets it.
    ///
    /// # Errors
    /// The first error that the node finds.
    pub fn check(&self, node: NodeIndex) -> Result<(), RouteError> {
        if self.strategy == Strategy::Flat {
            return Err(RouteError::Flat);
        }
        if self.replicas.is_empty() || self.replicas.len() > REPLICAS_MAX {
            return Err(RouteError::Count);
        }
        let here = self.replicas.get(usize::from(self.rank)).ok_or(RouteError::Rank)?;
        if here.node != node {
            return Err(RouteError::NotHere(here.node));
        }
        for (rank, replica) in self.replicas.iter().enumerate() {
            if replica.address.len() > ADDRESS_BYTES_MAX {
                return Err(RouteError::Address);
            }
            if self.replicas[..rank].iter().any(|earlier| earlier.node == replica.node) {
                return Err(RouteError::Twice(replica.node));
            }
        }
        let is_primary = self.strategy == Strategy::Primary;
        match &self.content {
            Content::Same => Ok(()),
            Content::Column(column) => {
                // A parity node gets contributions that are made.
                let is_made = !matches!(column.factors, Factors::Elements(_));
                let fits = is_primary && column.fits(self.replicas.len() - 1);
                let fits = fits && (is_made || !self.is_relayed());
                if fits { Ok(()) } else { Err(RouteError::Column) }
            }
            Content::Parts => {
                let fits = is_primary && !self.is_relayed() && self.replicas.len() > 1;
                if fits { Ok(()) } else { Err(RouteError::Parts) }
            }
        }
    }

    /// The column of a data shard whose parity the nodes make.
    #[must_use]
    pub fn column(&self) -> Option<&Column> {
        match &self.content {
            Content::Column(column) => Some(column),
            Content::Same | Content::Parts => None,
        }
    }

    /// The number of replicas.
    #[must_use]
    pub fn count(&self) -> u8 {
        u8::try_from(self.replicas.len()).expect("a route is short")
    }

    /// The number of parts in the payload of the request.
    #[must_use]
    pub fn parts(&self) -> usize {
        match self.content {
            Content::Same | Content::Column(_) => 1,
            Content::Parts => self.replicas.len(),
        }
    }

    /// The request is a contribution to a parity shard.
    #[must_use]
    pub fn is_contribution(&self) -> bool {
        self.column().is_some() && self.is_relayed()
    }

    /// How long a parity node waits for the other contributions: so long that its answer is on time
    /// at the data nodes.
    #[must_use]
    pub fn gather_ms(&self) -> u64 {
        u64::from(self.wait_ms.min(WAIT_MS_MAX)) / 2
    }

    /// The request came from another node, not from the writer.
    #[must_use]
    pub fn is_relayed(&self) -> bool {
        self.rank > 0
    }

    /// The ranks to which this node passes the write on.
    #[must_use]
    pub fn children(&self) -> Range<usize> {
        self.strategy.children(usize::from(self.rank), self.replicas.len())
    }

    /// The same route for the replica at `rank` behind the head. It gets one part of a payload in
    /// parts, and of a column a contribution that is made. `fragments` stays as it is: the caller
    /// sets it if the replica gets a payload of another length.
    #[must_use]
    pub fn at(&self, rank: usize) -> Self {
        let content = match &self.content {
            Content::Column(column) => Content::Column(column.made(self.replicas.len() - 1)),
            Content::Same | Content::Parts => Content::Same,
        };
        let (strategy, wait_ms, replicas) = (self.strategy, self.wait_ms, self.replicas.clone());
        let rank = u8::try_from(rank).expect("a route is short");
        Self { strategy, rank, wait_ms, replicas, content, fragments: self.fragments }
    }

    /// Replaces a column's table of elements by factors of one, when all contributions are made.
    pub fn forget_table(&mut self) {
        let parities = self.replicas.len().saturating_sub(1);
        if let Content::Column(column) = &mut self.content {
            *column = column.made(parities);
        }
    }

    /// How long this node waits for the replicas behind it. A node waits longer than those behind
    /// it, so their answers are on time even if they wait in vain.
    #[must_use]
    pub fn wait_here_ms(&self) -> u64 {
        let count = self.replicas.len();
        let whole = u64::from(self.strategy.depth(0, count)).max(1);
        u64::from(self.wait_ms.min(WAIT_MS_MAX))
            * u64::from(self.strategy.depth(usize::from(self.rank), count))
            / whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::{ElementTable, ElementTerm};

    fn route(strategy: Strategy, nodes: &[u16], rank: u8) -> Route {
        let replica = |node: &u16| Replica { node: NodeIndex(*node), ..Replica::default() };
        let replicas = nodes.iter().map(replica).collect();
        Route { strategy, rank, wait_ms: 600, replicas, ..Route::default() }
    }

    /// Every rank but the head has exactly one parent, of a lower rank, so each replica gets the
    /// write once and no route has a cycle.
    #[test]
    fn every_replica_gets_the_write_once() {
        for strategy in [Strategy::Ring, Strategy::Tree, Strategy::Primary] {
            for count in 1..=REPLICAS_MAX {
                let mut parents = vec![Vec::new(); count];
                for rank in 0..count {
                    for child in strategy.children(rank, count) {
                        assert!(child > rank, "{strategy}: {rank} of {count} has child {child}");
                        parents[child].push(rank);
                    }
                }
                assert!(parents[0].is_empty());
                assert!(parents[1..].iter().all(|of| of.len() == 1), "{strategy} {parents:?}");
                let mut reached = strategy.subtree(0, count);
                reached.sort_unstable();
                assert_eq!(reached, (0..count).collect::<Vec<_>>());
            }
        }
        assert!((0..4).all(|rank| Strategy::Flat.children(rank, 4).is_empty()));
    }

    #[test]
    fn the_strategies_are_those_of_the_papers() {
        let children =
            |strategy: Strategy| (0..7).map(|rank| strategy.children(rank, 7)).collect::<Vec<_>>();
        assert_eq!(children(Strategy::Ring), [1..2, 2..3, 3..4, 4..5, 5..6, 6..7, 7..7]);
        assert_eq!(children(Strategy::Tree), [1..3, 3..5, 5..7, 7..7, 7..7, 7..7, 7..7]);
        assert_eq!(children(Strategy::Primary)[0], 1..7);
        let depths = |strategy: Strategy| [3, 4, 7, 8].map(|count| strategy.depth(0, count));
        assert_eq!(depths(Strategy::Ring), [2, 3, 6, 7]);
        assert_eq!(depths(Strategy::Tree), [1, 2, 2, 3]);
        assert_eq!(depths(Strategy::Primary), [1, 1, 1, 1]);
        assert_eq!(Strategy::Ring.subtree(4, 7), [4, 5, 6]);
        assert_eq!(Strategy::Tree.subtree(1, 7), [1, 3, 4]);
    }

    #[test]
    fn a_node_waits_longer_than_those_behind_it() {
        for strategy in [Strategy::Ring, Strategy::Tree, Strategy::Primary] {
            let nodes: Vec<u16> = (0..10).collect();
            let wait = |rank: usize| route(strategy, &nodes, 0).at(rank).wait_here_ms();
            assert_eq!(wait(0), 600);
            for rank in 0..nodes.len() {
                for child in strategy.children(rank, nodes.len()) {
                    assert!(wait(child) < wait(rank), "{strategy}: {rank} and {child}");
                }
            }
        }
    }

    #[test]
    fn no_writer_makes_a_node_wait_for_ever() {
        let mut long = route(Strategy::Ring, &[1, 2, 3], 0);
        long.wait_ms = u32::MAX;
        assert_eq!(long.wait_here_ms(), u64::from(WAIT_MS_MAX));
        assert_eq!(long.at(1).wait_here_ms(), u64::from(WAIT_MS_MAX) / 2);
    }

    #[test]
    fn a_hostile_route_is_refused() {
        let ring = |nodes: &[u16], rank| route(Strategy::Ring, nodes, rank).check(NodeIndex(7));
        assert_eq!(ring(&[3, 7, 5], 1), Ok(()));
        assert_eq!(ring(&[3, 7, 5], 0), Err(RouteError::NotHere(NodeIndex(3))));
        assert_eq!(ring(&[3, 7, 5], 3), Err(RouteError::Rank));
        assert_eq!(ring(&[], 0), Err(RouteError::Count));
        assert_eq!(ring(&[3, 7, 5, 3], 1), Err(RouteError::Twice(NodeIndex(3))));
        assert_eq!(ring(&[7, 7], 0), Err(RouteError::Twice(NodeIndex(7))));
        let many: Vec<u16> = (7..8 + REPLICAS_MAX as u16).collect();
        assert_eq!(ring(&many, 0), Err(RouteError::Count));
        assert_eq!(route(Strategy::Flat, &[7], 0).check(NodeIndex(7)), Err(RouteError::Flat));
        let mut long = route(Strategy::Tree, &[7, 8], 0);
        long.replicas[1].address = vec![b'x'; ADDRESS_BYTES_MAX + 1].into();
        assert_eq!(long.check(NodeIndex(7)), Err(RouteError::Address));
    }

    fn factors_of_one() -> Factors {
        Factors::Scalars(Bytes::from_static(&[1]))
    }

    #[test]
    fn a_column_fits_its_route() {
        let column = |index, count, factors: &'static [u8]| {
            let factors = Factors::Scalars(Bytes::from_static(factors));
            Content::Column(Column { index, count, factors })
        };
        let check = |strategy, content| {
            Route { content, ..route(strategy, &[7, 5, 3], 0) }.check(NodeIndex(7))
        };
        assert_eq!(check(Strategy::Primary, column(3, 4, &[1, 2])), Ok(()));
        let wrong = Err(RouteError::Column);
        assert_eq!(check(Strategy::Primary, column(4, 4, &[1, 2])), wrong);
        assert_eq!(check(Strategy::Primary, column(0, 0, &[1, 2])), wrong);
        assert_eq!(check(Strategy::Primary, column(0, 4, &[1])), wrong);
        assert_eq!(check(Strategy::Primary, column(0, 4, &[1, 2, 3])), wrong);
        assert_eq!(check(Strategy::Ring, column(0, 4, &[1, 2])), wrong);
        let content = column(0, 4, &[1, 2]);
        let head = Route { content, ..route(Strategy::Primary, &[7, 5], 0) };
        assert!(!head.is_contribution() && head.at(1).is_contribution());
        assert!(!route(Strategy::Primary, &[7, 5], 1).is_contribution());
        assert!(head.gather_ms() < head.wait_here_ms());
        let row = [ElementTerm { element: 0, factor: 1 }];
        let table = ElementTable::new(512, 1, [&row[..]]).expect("in bounds");
        let column = Column { index: 0, count: 2, factors: Factors::Elements(table) };
        let content = Content::Column(column);
        let mut tabled = Route { content, ..route(Strategy::Primary, &[7, 5], 0) };
        assert_eq!(tabled.check(NodeIndex(7)), Ok(()));
        assert_eq!(tabled.at(1).check(NodeIndex(5)), Ok(()));
        assert_eq!(Route { rank: 1, ..tabled.clone() }.check(NodeIndex(5)), wrong);
        tabled.forget_table();
        assert_eq!(tabled.column().map(|column| &column.factors), Some(&factors_of_one()));
        let patient = Route { wait_ms: u32::MAX, ..head };
        assert_eq!(patient.gather_ms(), u64::from(WAIT_MS_MAX) / 2);
    }

    #[test]
    fn parts_go_from_the_head_straight_to_others() {
        let parts = |strategy, nodes: &[u16], rank| Route {
            content: Content::Parts,
            ..route(strategy, nodes, rank)
        };
        let check = |strategy, nodes: &[u16], rank| {
            parts(strategy, nodes, rank).check(NodeIndex(nodes[usize::from(rank)]))
        };
        assert_eq!(check(Strategy::Primary, &[7, 5, 3], 0), Ok(()));
        assert_eq!(check(Strategy::Primary, &[7, 5], 0), Ok(()));
        let wrong = Err(RouteError::Parts);
        assert_eq!(check(Strategy::Primary, &[7], 0), wrong, "no other node");
        assert_eq!(check(Strategy::Primary, &[7, 5, 3], 1), wrong, "not the head");
        assert_eq!(check(Strategy::Ring, &[7, 5, 3], 0), wrong);
        assert_eq!(check(Strategy::Tree, &[7, 5, 3], 0), wrong);
        let head = parts(Strategy::Primary, &[7, 5, 3], 0);
        let copies = route(Strategy::Primary, &[7, 5, 3], 0);
        assert_eq!((head.parts(), copies.parts()), (3, 1));
        assert_eq!(head.at(2), copies.at(2), "a child writes what it gets");
        assert!(!head.is_contribution() && !head.at(1).is_contribution());
        let factors = Factors::Scalars(Bytes::new());
        let content = Content::Column(Column { index: 0, count: 2, factors });
        let streamed = Route { content, ..copies };
        assert_eq!((streamed.parts(), streamed.at(1).content), (1, streamed.content.clone()));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for encode in Encode::ALL {
            assert_eq!(encode.to_string().parse(), Ok(encode));
        }
        let error = "server".parse::<Encode>().expect_err("no way").to_string();
        assert_eq!(error, "\"server\" is no way to encode: it is client or stream");
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        let error = "chain".parse::<Strategy>().expect_err("no strategy");
        assert_eq!(
            error.to_string(),
            "\"chain\" is no way to replicate: it is flat, ring, tree or primary"
        );
    }
}
