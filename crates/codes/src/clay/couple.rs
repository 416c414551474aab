//! The pairwise transform of a pair of vertices: it has two coupled elements C and two uncoupled
//! elements U. Any two of the four determine the others, because (C, C', U, U') is a codeword of a
//! (2, 2) MDS code.

use fieldstone_gf::Matrix;

/// One of the four elements of a pair, as seen from one of its two vertices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Corner {
    /// The coupled element of this vertex, which the shard holds.
    Coupled,
    /// The coupled element of the partner.
    PartnerCoupled,
    /// The uncoupled element of this vertex.
    Uncoupled,
    /// The uncoupled element of the partner.
    PartnerUncoupled,
}

/// The transform of a code.
pub(crate) struct Couple {
    /// Rows C of the node with the larger x, C of the other, U of the larger, U of the other.
    generator: Matrix,
}

impl Couple {
    /// The transform with these two parity rows.
    pub(crate) fn new(parities: &Matrix) -> Self {
        Self { generator: crate::rs::generator(parities) }
    }

    /// The coefficients that give `wanted` from the two different corners `from`. `larger` is true
    /// if the vertex's node has the larger x of its pair.
    pub(crate) fn coefficients(&self, larger: bool, wanted: Corner, from: [Corner; 2]) -> [u8; 2] {
        let row = |corner| match (corner, larger) {
            (Corner::Coupled, true) | (Corner::PartnerCoupled, false) => 0,
            (Corner::Coupled, false) | (Corner::PartnerCoupled, true) => 1,
            (Corner::Uncoupled, true) | (Corner::PartnerUncoupled, false) => 2,
            (Corner::Uncoupled, false) | (Corner::PartnerUncoupled, true) => 3,
        };
        let known = self.generator.select_rows(&from.map(row)).invert();
        let known = known.expect("any two rows of a (2, 2) MDS code are independent");
        let product = self.generator.select_rows(&[row(wanted)]).multiply(&known);
        let product = product.expect("a row of two times a 2 x 2 matrix");
        [product[(0, 0)], product[(0, 1)]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Corner::{Coupled, PartnerCoupled, PartnerUncoupled, Uncoupled};
    use fieldstone_gf::field::mul;

    #[test]
    fn every_corner_follows_from_any_two_others() {
        // Jerasure's (2, 2) code: rows 1 1 and 1 143.
        let couple =
            Couple::new(&Matrix::from_fn(2, 2, |row, column| [[1, 1], [1, 143]][row][column]));
        let (large, small) = (0x35, 0xc4);
        let (u_large, u_small) = (large ^ small, large ^ mul(143, small));
        let corners = [Coupled, PartnerCoupled, Uncoupled, PartnerUncoupled];
        for (at_larger, values) in
            [(true, [large, small, u_large, u_small]), (false, [small, large, u_small, u_large])]
        {
            for a in 0..4 {
                for b in (0..4).filter(|&b| b != a) {
                    for wanted in 0..4 {
                        let from = [corners[a], corners[b]];
                        let [ca, cb] = couple.coefficients(at_larger, corners[wanted], from);
                        assert_eq!(mul(ca, values[a]) ^ mul(cb, values[b]), values[wanted]);
                    }
                }
            }
        }
    }
}
