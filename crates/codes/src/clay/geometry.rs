//! The positions of nodes and planes; [`super`] explains them.

/// One vertex of the grid: a node's element in one plane.
pub(crate) type Vertex = (usize, u32);

/// The grid of a Clay code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) k: usize,
    pub(crate) m: usize,
    /// Nodes of a row of the grid, d - k + 1: 1/q of each helper is read.
    pub(crate) q: usize,
    /// Rows of the grid.
    pub(crate) t: usize,
    /// Virtual nodes, which hold zeros.
    pub(crate) nu: usize,
}

impl Geometry {
    /// The grid of k + m nodes with d helpers, k <= d < k + m.
    pub(crate) fn new(k: usize, m: usize, d: usize) -> Self {
        let q = d - k + 1;
        let nodes = (k + m).next_multiple_of(q);
        Self { k, m, q, t: nodes / q, nu: nodes - k - m }
    }

    /// Number of planes, which is the number of elements of a shard: q^t, or `None` beyond 32 bits.
    pub(crate) fn planes(&self) -> Option<u32> {
        (self.q as u32).checked_pow(self.t as u32)
    }

    /// All nodes, virtual ones included.
    pub(crate) fn nodes(&self) -> usize {
        self.q * self.t
    }

    /// Number of nodes that determine the others in one plane of uncoupled elements.
    pub(crate) fn message_nodes(&self) -> usize {
        self.k + self.nu
    }

    /// The node of a shard: virtual nodes lie between data and parities.
    pub(crate) fn node(&self, shard: usize) -> usize {
        if shard < self.k { shard } else { shard + self.nu }
    }

    /// The shard of a node, or `None` for virtual ones.
    pub(crate) fn shard(&self, node: usize) -> Option<usize> {
        if node < self.k { Some(node) } else { node.checked_sub(self.nu).filter(|&s| s >= self.k) }
    }

    /// Position of a node in its row.
    pub(crate) fn x(&self, node: usize) -> usize {
        node % self.q
    }

    /// Row of a node.
    pub(crate) fn y(&self, node: usize) -> usize {
        node / self.q
    }

    fn unit(&self, y: usize) -> usize {
        self.q.pow((self.t - 1 - y) as u32)
    }

    /// Digit y of a plane's number; digit 0 is the most significant.
    pub(crate) fn digit(&self, plane: u32, y: usize) -> usize {
        plane as usize / self.unit(y) % self.q
    }

    /// True if the vertex is a dot of its plane, and so has no partner.
    pub(crate) fn is_dot(&self, (node, plane): Vertex) -> bool {
        self.digit(plane, self.y(node)) == self.x(node)
    }

    /// The partner of a vertex: the node that has the plane's dot in the same row, in the plane
    /// whose dot is this node.
    pub(crate) fn partner(&self, (node, plane): Vertex) -> Vertex {
        let (x, y) = (self.x(node), self.y(node));
        let dot = self.digit(plane, y);
        let other = plane as usize - dot * self.unit(y) + x * self.unit(y);
        (y * self.q + dot, other as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_are_mutual_and_dots_are_their_own() {
        for (k, m, d) in [(4, 2, 5), (8, 3, 10), (6, 3, 7), (4, 3, 4)] {
            let grid = Geometry::new(k, m, d);
            assert_eq!(grid.nodes(), k + m + grid.nu);
            for node in 0..grid.nodes() {
                if let Some(shard) = grid.shard(node) {
                    assert_eq!(grid.node(shard), node);
                }
                for plane in 0..grid.planes().unwrap() {
                    let vertex = (node, plane);
                    let partner = grid.partner(vertex);
                    assert_eq!(grid.partner(partner), vertex);
                    assert_eq!(partner == vertex, grid.is_dot(vertex));
                    assert_eq!(grid.y(partner.0), grid.y(node));
                }
            }
        }
    }

    #[test]
    fn grids_are_those_of_the_plugin() {
        for (k, m, d, q, t, nu, planes) in [
            (4, 2, 5, 2, 3, 0, 8),
            (5, 3, 7, 3, 3, 1, 27),
            (8, 3, 10, 3, 4, 1, 81),
            (8, 4, 11, 4, 3, 0, 64),
            (4, 3, 5, 2, 4, 1, 16),
        ] {
            let grid = Geometry::new(k, m, d);
            assert_eq!((grid.q, grid.t, grid.nu), (q, t, nu));
            assert_eq!(grid.planes(), Some(planes));
        }
    }
}
