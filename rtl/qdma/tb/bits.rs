//! Packed structures at ports. A field has a lowest bit and a width.

/// Up to 64 bits of a packed value, least significant byte first.
pub fn get(bytes: &[u8], low: usize, width: usize) -> u64 {
    (0..width).fold(0, |value, bit| {
        let at = low + bit;
        value | u64::from(bytes[at / 8] >> (at % 8) & 1) << bit
    })
}

/// A packed value of these fields (value, width), the lowest first.
pub fn pack(fields: &[(u64, usize)]) -> Vec<u8> {
    let bits: usize = fields.iter().map(|field| field.1).sum();
    let mut bytes = vec![0; bits.div_ceil(8)];
    let mut at = 0;
    for &(value, width) in fields {
        assert!(width == 64 || value >> width == 0, "{value:#x} has more than {width} bits");
        for bit in 0..width {
            bytes[at / 8] |= ((value >> bit & 1) as u8) << (at % 8);
            at += 1;
        }
    }
    bytes
}

/// A beat of data with fields above it.
pub fn with_beat(beat: &[u8], fields: &[(u64, usize)]) -> Vec<u8> {
    [beat, &pack(fields)].concat()
}
