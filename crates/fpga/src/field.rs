//! Parts of registers and of layouts in memory.

/// Bits of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// The highest bit.
    pub high: u32,
    /// The lowest bit.
    pub low: u32,
}

impl Bits {
    /// Extracts the field from a register's value.
    #[must_use]
    pub const fn of(self, register: u64) -> u64 {
        register >> self.low & self.mask()
    }

    /// The register's value with `value` in this field and zeros elsewhere. Bits that do not fit
    /// are cut off.
    #[must_use]
    pub const fn with(self, value: u64) -> u64 {
        (value & self.mask()) << self.low
    }

    const fn mask(self) -> u64 {
        u64::MAX >> (63 - (self.high - self.low))
    }
}

/// Bytes of a layout that hold one little-endian number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its offset in the layout.
    pub offset: usize,
    /// Its size; numbers have 8 bytes at most.
    pub bytes: usize,
}

impl Field {
    /// The number in a layout's bytes.
    ///
    /// # Panics
    /// When `layout` is shorter than its layout says, or the field is no number.
    #[must_use]
    pub fn get(self, layout: &[u8]) -> u64 {
        let mut bytes = [0; 8];
        bytes[..self.bytes].copy_from_slice(&layout[self.offset..self.offset + self.bytes]);
        u64::from_le_bytes(bytes)
    }

    /// Puts the number into a layout's bytes. Bits that do not fit are cut off.
    ///
    /// # Panics
    /// As [`Field::get`].
    pub fn put(self, layout: &mut [u8], value: u64) {
        layout[self.offset..self.offset + self.bytes]
            .copy_from_slice(&value.to_le_bytes()[..self.bytes]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_out_as_they_went_in() {
        let (low, high) = (Bits { high: 7, low: 0 }, Bits { high: 63, low: 8 });
        let register = low.with(0x5a) | high.with(0x00ab_cdef_0123_4567);
        assert_eq!(register, 0xabcd_ef01_2345_675a);
        assert_eq!((low.of(register), high.of(register)), (0x5a, 0xab_cdef_0123_4567));
        assert_eq!(Bits { high: 63, low: 0 }.of(u64::MAX), u64::MAX);
        assert_eq!(low.with(0x1ff), 0xff);
    }

    #[test]
    fn fields_are_little_endian_and_touch_nothing_else() {
        let mut layout = [0xee; 8];
        Field { offset: 2, bytes: 4 }.put(&mut layout, 0x11_0403_0201);
        assert_eq!(layout, [0xee, 0xee, 1, 2, 3, 4, 0xee, 0xee]);
        assert_eq!(Field { offset: 2, bytes: 4 }.get(&layout), 0x0403_0201);
    }
}
