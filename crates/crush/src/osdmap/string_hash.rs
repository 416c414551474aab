//! Hashes of object names.

/// The start value of a and b: the golden ratio, "an arbitrary value" in Jenkins' paper.
const GOLDEN: u32 = 0x9e37_79b9;
/// Separates namespace and key: ASCII "unit separator", which sorts before all printable
/// characters.
const SEPARATOR: u8 = 0x1f;

/// How a pool hashes the names of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringHash {
    /// The hash of the Linux dentry cache.
    Linux,
    /// Robert Jenkins' hash of 1996.
    Rjenkins,
    /// A number without a meaning: all names hash to -1, as in Ceph.
    Other(u8),
}

impl StringHash {
    /// The hash with that number in pools.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Linux,
            2 => Self::Rjenkins,
            other => Self::Other(other),
        }
    }

    /// The hash of some bytes.
    #[must_use]
    pub fn hash(self, bytes: &[u8]) -> u32 {
        match self {
            Self::Linux => linux(bytes),
            Self::Rjenkins => rjenkins(bytes),
            Self::Other(_) => u32::MAX,
        }
    }

    /// The placement seed of an object: the hash of its key, after its namespace if it has one.
    #[must_use]
    pub fn seed(self, namespace: &[u8], key: &[u8]) -> u32 {
        if namespace.is_empty() {
            return self.hash(key);
        }
        self.hash(&[namespace, &[SEPARATOR], key].concat())
    }
}

fn linux(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |hash: u32, &byte| {
        let byte = u32::from(byte);
        hash.wrapping_add(byte << 4).wrapping_add(byte >> 4).wrapping_mul(11)
    })
}

fn mix(a: &mut u32, b: &mut u32, c: &mut u32) {
    for (first, second, third) in [(13, 8, 13), (12, 16, 5), (3, 10, 15)] {
        *a = a.wrapping_sub(*b).wrapping_sub(*c) ^ (*c >> first);
        *b = b.wrapping_sub(*c).wrapping_sub(*a) ^ (*a << second);
        *c = c.wrapping_sub(*a).wrapping_sub(*b) ^ (*b >> third);
    }
}

/// Up to four bytes, the first one lowest.
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// Takes twelve bytes at a time into a, b and c. In the last, short block the lowest byte of c is
/// for the length, so the block's bytes from the ninth on enter one place higher.
fn rjenkins(bytes: &[u8]) -> u32 {
    let (mut a, mut b, mut c) = (GOLDEN, GOLDEN, 0_u32);
    let (blocks, tail) = bytes.as_chunks::<12>();
    for block in blocks {
        a = a.wrapping_add(word(&block[0..4]));
        b = b.wrapping_add(word(&block[4..8]));
        c = c.wrapping_add(word(&block[8..12]));
        mix(&mut a, &mut b, &mut c);
    }
    let part = |from: usize, to: usize| word(&tail[from.min(tail.len())..to.min(tail.len())]);
    a = a.wrapping_add(part(0, 4));
    b = b.wrapping_add(part(4, 8));
    c = c.wrapping_add(bytes.len() as u32).wrapping_add(part(8, 11) << 8);
    mix(&mut a, &mut b, &mut c);
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ceph osd map POOL foo` prints the seed of "foo" as 7fc1f406 on every cluster.
    #[test]
    fn known_seeds() {
        assert_eq!(StringHash::Rjenkins.seed(b"", b"foo"), 0x7fc1_f406);
        assert_ne!(StringHash::Rjenkins.seed(b"space", b"foo"), 0x7fc1_f406);
        assert_eq!(
            StringHash::Rjenkins.seed(b"space", b"foo"),
            StringHash::Rjenkins.hash(b"space\x1ffoo")
        );
        // By hand: ((0 + 0x610 + 6) * 11 + 0x620 + 6) * 11.
        assert_eq!(StringHash::Linux.hash(b"ab"), ((0x610 + 6) * 11 + 0x620 + 6) * 11);
        assert_eq!(StringHash::Other(7).hash(b"ab"), u32::MAX);
    }
}
