//! Scale of tests with random input, kills or load. `make test` uses their default size, `make soak` multiplies it.

/// Multiplies a number of seeds, rounds or cases by `TIDEWIRE_TEST_SCALE`, which is 1 if it is not set.
pub fn scaled(size: u64) -> u64 {
    let scale = std::env::var("TIDEWIRE_TEST_SCALE");
    let scale: u64 = scale.map_or(1, |text| text.parse().expect("TIDEWIRE_TEST_SCALE is a number"));
    size * scale
}
