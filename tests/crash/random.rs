//! Deterministic random numbers from a seed (SplitMix64).

#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator. Generators of the same seed with different `stream` values are independent.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed ^ stream.wrapping_mul(0xA076_1D64_78BD_642F));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// Returns a number from 0 to `bound` - 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}
