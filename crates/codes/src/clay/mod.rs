//! Clay codes: MSR codes that rebuild any one shard, data or parity, from 1/q of each of d helpers
//! (Vajha et al., *Clay Codes: Moulding MDS Codes to Yield an MSR Code*, FAST 2018), bit for bit
//! as Ceph's `clay` plugin stores them.
//!
//! **Grid.** With q = d - k + 1, the k + m nodes and nu *virtual* nodes of zeros form a grid of t
//! rows of q nodes. A shard has q^t elements, one for each *plane*. A plane's number has t digits
//! in base q, and digit y names the plane's *dot* in row y. A node's number is y q + x; virtual
//! nodes come after the data nodes.
//!
//! **Coupling.** A shard holds *coupled* elements C. Each has an *uncoupled* element U. At a dot, C
//! and U are equal. Elsewhere, vertex (node x of row y, plane z) is coupled with the node that is
//! z's dot in row y, in the plane whose dot there is x. The two C and the two U of such a pair are
//! a codeword of a (2, 2) MDS code: [`couple`].
//!
//! **The code itself.** In each plane, the U of all nodes are a codeword of an ordinary (k + nu, m)
//! MDS code. This defines the code: encoding is decoding with the parities lost.
//!
//! **Layered decoding.** Let m nodes be lost. A plane's *score* is the number of lost nodes among
//! its dots. Planes are solved in the order of their scores. The U of every node that is not lost
//! comes from its own C and either its partner's C or, if the partner is lost, the partner's U,
//! which a plane with a score one lower has given. Then the MDS code gives the U of the lost nodes.
//! At the end, the C of the lost nodes come from these U.
//!
//! **Repair of one node** (x0, y0). Only planes with dot x0 in row y0 are read: 1/q of all planes.
//! The m unknown U of such a plane are those of row y0 (whose partners' planes are not read) and of
//! nodes that are not helpers. Their solution gives the C of the lost node in this plane. Through
//! the pairs of row y0 with the lost node, it also gives the C in the q - 1 planes that differ in
//! digit y0. So the rest of row y0 must be among the helpers; the other helpers may be any nodes.
//! See [`layered`] for both.
//!
//! | k+m, d  | elements | read to rebuild one shard, in shards | with Reed-Solomon |
//! |---------|----------|--------------------------------------|-------------------|
//! | 4+2, 5  | 8        | 2.5                                  | 4                 |
//! | 6+3, 8  | 27       | 2.67                                 | 6                 |
//! | 8+4, 11 | 64       | 2.75                                 | 8                 |
//! | 10+4, 13| 256      | 3.25                                 | 10                |

mod couple;
mod geometry;
mod layered;

use fieldstone_gf::{LinearMap, Matrix, WordField};

use crate::cache::PlanKey;
use crate::construction::{Construction, data_first};
use crate::{RepairPlan, isa, jerasure, rs};
use couple::Couple;
use geometry::Geometry;

/// The MDS code inside a Clay code, Ceph's `scalar_mds` and `technique`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScalarMds {
    /// Jerasure's `reed_sol_van`, Ceph's default.
    #[default]
    JerasureVan,
    /// ISA-L's Vandermonde matrix.
    RsVan,
    /// ISA-L's Cauchy matrix.
    Rs,
}

impl ScalarMds {
    /// All MDS codes.
    pub const ALL: [Self; 3] = [Self::JerasureVan, Self::RsVan, Self::Rs];

    /// The code's name without numbers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::JerasureVan => "jerasure-van",
            Self::RsVan => "rs-van",
            Self::Rs => "rs",
        }
    }

    fn parities(self, k: usize, m: usize) -> Matrix {
        match self {
            Self::JerasureVan => {
                let rows = jerasure::vandermonde(WordField::W8, k, m);
                Matrix::from_fn(m, k, |row, column| rows[row][column] as u8)
            }
            Self::RsVan => isa::vandermonde(k, m),
            Self::Rs => isa::cauchy(k, m),
        }
    }
}

/// Most elements per shard: shards of 16 MiB then have elements of 4 KiB, the unit of storage.
pub const CLAY_MAX_ELEMENTS: u32 = 4096;
/// Most nodes, with virtual ones, as in Ceph's plugin.
const MAX_NODES: usize = 254;

/// The reason why the numbers are no Clay code; `None` if they are one.
pub(crate) fn refusal(k: usize, m: usize, d: usize, mds: ScalarMds) -> Option<String> {
    if k < 2 || m < 1 {
        return Some("K must be at least 2 and M at least 1".into());
    }
    if d < k || d >= k + m {
        return Some(format!("d must be {k} to {}", k + m - 1));
    }
    let grid = Geometry::new(k, m, d);
    if grid.nodes() > MAX_NODES {
        return Some(format!("with virtual nodes it has {} nodes, of {MAX_NODES}", grid.nodes()));
    }
    if grid.planes().is_none_or(|planes| planes > CLAY_MAX_ELEMENTS) {
        let (q, t) = (grid.q, grid.t);
        return Some(format!("it has {q}^{t} elements, and {CLAY_MAX_ELEMENTS} are the most"));
    }
    let message = grid.message_nodes();
    (mds == ScalarMds::RsVan && !isa::vandermonde_is_mds(message, m))
        .then(|| format!("rs-van:{message}+{m} inside it repairs not every loss"))
}

/// Elements per shard of a code that [`refusal`] accepts.
pub(crate) fn elements(k: usize, m: usize, d: usize) -> u32 {
    Geometry::new(k, m, d).planes().expect("profiles bound the number of elements")
}

/// Number of terms of the largest program: encoder, repair plan or update. For numbers that
/// [`refusal`] accepts.
///
/// Each of the m unknown nodes of a plane is a sum over the known nodes. Take the q planes that
/// differ in the digit of one row, which has r real nodes. There, a known real node of the row
/// gives one term for itself in each plane, and one for each of its r - 1 real partners. A virtual
/// node gives one term for each of its r partners. Virtual nodes are always known, and so are k
/// real ones; in the worst case, these are of the rows with the most real nodes. An output is one
/// term at a dot, and two elsewhere. A rebuild solves 1/q of the planes, and has fewer terms.
pub(crate) fn most_terms(k: usize, m: usize, d: usize) -> usize {
    let Geometry { q, t, nu, .. } = Geometry::new(k, m, d);
    // Virtual nodes are those from k to k + nu.
    let virtual_below = |node: usize| node.clamp(k, k + nu) - k;
    let virtual_of = |row: usize| virtual_below((row + 1) * q) - virtual_below(row * q);
    let of_virtual: usize = (0..t).map(|row| virtual_of(row) * (q - virtual_of(row))).sum();
    let mut real: Vec<usize> = (0..t).map(|row| q - virtual_of(row)).collect();
    real.sort_unstable_by_key(|&real| std::cmp::Reverse(real));
    let (mut of_real, mut left) = (0, k);
    for real in real {
        let known = real.min(left);
        of_real += known * (q + real - 1);
        left -= known;
    }
    let outputs = 2 * q - 1;
    elements(k, m, d) as usize / q * m * (of_real + of_virtual + outputs)
}

/// A Clay code.
pub(crate) struct Clay {
    grid: Geometry,
    elements: u32,
    couple: Couple,
    /// All nodes' rows of the MDS code of a plane.
    generator: Matrix,
}

impl Clay {
    /// The code, for numbers that [`refusal`] accepts.
    pub(crate) fn new(k: usize, m: usize, d: usize, mds: ScalarMds) -> Self {
        let grid = Geometry::new(k, m, d);
        Self {
            grid,
            elements: elements(k, m, d),
            couple: Couple::new(&mds.parities(2, 2)),
            generator: rs::generator(&mds.parities(grid.message_nodes(), m)),
        }
    }

    /// The number d.
    fn helpers(&self) -> usize {
        self.grid.q + self.grid.k - 1
    }

    /// The helpers for the repair of one shard: the rest of its row of the grid, then the preferred
    /// ones. `None` if the row or d helpers are not available.
    fn choose_helpers(&self, lost: usize, available: &[usize]) -> Option<Vec<usize>> {
        let row = self.grid.y(self.grid.node(lost));
        let in_row = |shard: &usize| self.grid.y(self.grid.node(*shard)) == row;
        let (mut helpers, others): (Vec<usize>, Vec<usize>) =
            available.iter().partition(|shard| in_row(shard));
        let needed = (0..self.grid.k + self.grid.m).filter(|&s| s != lost && in_row(&s)).count();
        if helpers.len() < needed || available.len() < self.helpers() {
            return None;
        }
        helpers.extend(others);
        helpers.truncate(self.helpers());
        Some(helpers)
    }
}

impl Construction for Clay {
    fn elements(&self) -> u32 {
        self.elements
    }

    fn encode(&self) -> LinearMap {
        let (k, m) = (self.grid.k, self.grid.m);
        let (data, parities): (Vec<usize>, Vec<usize>) = (0..k + m).partition(|&shard| shard < k);
        self.decode_map(&parities, &data)
    }

    fn choose(&self, lost: &[usize], available: &[usize]) -> Vec<usize> {
        let helpers = match lost {
            [shard] => self.choose_helpers(*shard, available),
            _ => None,
        };
        helpers.unwrap_or_else(|| data_first(self.grid.k, available))
    }

    fn plan(&self, key: &PlanKey) -> RepairPlan {
        match key.lost[..] {
            // With d = k, decoding and rebuilding are the same.
            [shard] if key.reads.len() > self.grid.k => self.rebuild(shard, &key.reads),
            _ => self.decode(&key.lost, &key.reads),
        }
    }
}
