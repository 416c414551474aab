//! CRC-32C as Ceph computes it: no inversion of the start or the end.

const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (POLYNOMIAL * (value & 1));
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

/// The checksum of bytes, begun with `seed`.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| (crc >> 8) ^ TABLE[((crc as u8) ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    #[test]
    fn equals_the_published_check_value() {
        assert_eq!(!super::crc32c(u32::MAX, b"123456789"), 0xe306_9283);
    }
}
