//! The Zigzag code {6,4,8} of the MSR engine paper, as far as it is measured here: encode (its
//! equations 2 to 5) and rebuild of its second data node.
//!
//! With rows numbered from 0, parity 1 is the XOR of the data in each row. Parity 2 sums along
//! zigzags: in row y, data node j contributes its row y ^ v_j with v = 0, 1, 2, 4, times 2 if the
//! bits of that row below bit j have an odd sum.

use fieldstone_gf::{Element, LinearMap, Row, Shape, Target, Term, field};

/// Data nodes.
pub const K: usize = 4;
/// Elements of each node.
pub const ELEMENTS: u32 = 8;

/// The row of data node j that parity 2 reads in row y, and its coefficient there.
fn zigzag(node: usize, y: u32) -> (u32, u8) {
    let vector = if node == 0 { 0 } else { 1 << (node - 1) };
    let row = y ^ vector;
    let below = row & ((1 << node) - 1);
    (row, if below.count_ones() % 2 == 1 { 2 } else { 1 })
}

/// From four data nodes to two parities.
pub fn encode() -> LinearMap {
    let nodes = || 0..K as u16;
    let rows = (0..ELEMENTS).map(|y| nodes().map(|node| Term::input(node, y, 1)).collect());
    let zigzags = (0..ELEMENTS).map(|y| {
        let term = |node: u16| {
            let (row, coefficient) = zigzag(usize::from(node), y);
            Term::input(node, row, coefficient)
        };
        nodes().map(term).collect()
    });
    LinearMap::new(K, 2, ELEMENTS, rows.chain(zigzags).collect())
        .expect("every row reads elements that exist")
}

/// Data node 1 (the second) from the even rows of the five others: inputs are data nodes 0, 2 and
/// 3, then both parities, with half of the elements each.
pub fn rebuild() -> LinearMap {
    const LOST: usize = 1;
    let others = [(0u16, 0usize), (1, 2), (2, 3)];
    let rows = (0..ELEMENTS).map(|index| {
        let target = Target::Output(Element { shard: 0, index });
        let even = index & !1;
        let terms: Vec<Term> = if index == even {
            (0..4).map(|input| Term::input(input, even / 2, 1)).collect()
        } else {
            // Its zigzag ends in an even row, and so do all others there.
            let (row, coefficient) = zigzag(LOST, even);
            debug_assert_eq!(row, index, "the zigzag of the lost element");
            let inverse = field::inverse(coefficient).expect("1 or 2");
            let others = others.iter().map(|&(input, node)| {
                let (row, coefficient) = zigzag(node, even);
                Term::input(input, row / 2, field::mul(inverse, coefficient))
            });
            others.chain([Term::input(4, even / 2, inverse)]).collect()
        };
        Row { target, terms }
    });
    let half = ELEMENTS / 2;
    let shape = Shape {
        input_elements: vec![half; K + 1],
        output_elements: vec![ELEMENTS],
        scratch_elements: 0,
    };
    LinearMap::from_steps(shape, vec![rows.collect()]).expect("every row reads what exists")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELEMENT_BYTES: usize = 5;

    fn element(shard: &[u8], index: usize) -> &[u8] {
        &shard[index * ELEMENT_BYTES..][..ELEMENT_BYTES]
    }

    #[test]
    fn parities_are_those_of_the_paper_and_rebuild_gives_the_node_back() {
        let node = |seed: usize| -> Vec<u8> {
            (0..8 * ELEMENT_BYTES).map(|at| (at * seed + at / 3) as u8).collect()
        };
        let data: Vec<Vec<u8>> = [29, 31, 37, 41].map(node).to_vec();
        let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parities = vec![vec![0u8; 8 * ELEMENT_BYTES]; 2];
        let mut outputs: Vec<&mut [u8]> = parities.iter_mut().map(Vec::as_mut_slice).collect();
        encode().execute(&slices, &mut outputs).expect("lengths fit");
        // Equation 4: P2r3 = D1r3 + 2 D2r4 + D3r1 + D4r7, and 5: P2r1 with three twos.
        for at in 0..ELEMENT_BYTES {
            let d = |node: usize, row: usize| element(&data[node - 1], row - 1)[at];
            let two = |byte: u8| field::mul(2, byte);
            let p2 = |row: usize| element(&parities[1], row - 1)[at];
            assert_eq!(p2(3), d(1, 3) ^ two(d(2, 4)) ^ d(3, 1) ^ d(4, 7));
            assert_eq!(p2(1), d(1, 1) ^ two(d(2, 2)) ^ two(d(3, 3)) ^ two(d(4, 5)));
            assert_eq!(element(&parities[0], 4)[at], d(1, 5) ^ d(2, 5) ^ d(3, 5) ^ d(4, 5));
        }
        let even = |shard: &Vec<u8>| [0, 2, 4, 6].map(|index| element(shard, index)).concat();
        let survivors = [&data[0], &data[2], &data[3], &parities[0], &parities[1]].map(even);
        let survivors = survivors.each_ref().map(Vec::as_slice);
        let mut rebuilt = vec![0u8; 8 * ELEMENT_BYTES];
        rebuild().execute(&survivors, &mut [&mut rebuilt]).expect("lengths fit");
        assert_eq!(rebuilt, data[1]);
    }
}
