//! Cutting gather lists.

use bytes::Bytes;

/// Takes bytes from the front of a gather list, without copying them.
#[derive(Debug)]
pub struct Cutter {
    front: Bytes,
    rest: std::vec::IntoIter<Bytes>,
}

impl Cutter {
    /// A cutter of this gather list.
    #[must_use]
    pub fn new(payload: Vec<Bytes>) -> Self {
        Self { front: Bytes::new(), rest: payload.into_iter() }
    }

    /// The next `len_bytes` bytes, or the fewer that are left.
    pub fn next(&mut self, len_bytes: usize) -> Vec<Bytes> {
        let (mut taken, mut missing) = (Vec::new(), len_bytes);
        while missing > 0 {
            if self.front.is_empty() {
                match self.rest.next() {
                    Some(part) => self.front = part,
                    None => break,
                }
            }
            let part = self.front.split_to(missing.min(self.front.len()));
            missing -= part.len();
            taken.extend((!part.is_empty()).then_some(part));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_order_whatever_the_lengths() {
        let whole: Bytes = (0..100).collect();
        for first in [1, 30, 99] {
            for len_bytes in [1, 7, 50, 100, 101] {
                let list = vec![whole.slice(..first), Bytes::new(), whole.slice(first..)];
                let mut cutter = Cutter::new(list);
                let mut taken: Vec<Vec<Bytes>> = Vec::new();
                loop {
                    let part = cutter.next(len_bytes);
                    if part.is_empty() {
                        break;
                    }
                    taken.push(part);
                }
                let lens = taken.iter().map(|part| part.iter().map(Bytes::len).sum::<usize>());
                assert!(lens.clone().rev().skip(1).all(|len| len == len_bytes));
                assert_eq!(lens.sum::<usize>(), 100);
                assert_eq!(taken.concat().concat(), whole);
            }
        }
    }
}
