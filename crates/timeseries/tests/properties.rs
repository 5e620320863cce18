//! Compares the embedded store with the naive one: random writes, late points, overwrites, deletions, flushes, merges
//! and restarts, with and without a failing disk. A failure prints its seed. `TIMESERIES_SEED` runs only one seed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use crate::random::Runner;
use crate::scale::scaled;
use storage::model::DiskFault;
use timeseries::TimeseriesStore;

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let one = std::env::var("TIMESERIES_SEED").ok().map(|seed| seed.parse().unwrap());
    let range = one.map_or(0..scaled(count), |seed: u64| seed..seed + 1);
    range.inspect(|seed| println!("seed {seed}"))
}

#[test]
fn both_stores_say_the_same() {
    for seed in seeds(30) {
        let mut runner = Runner::new(seed);
        if seed % 2 == 0 {
            runner = runner.with_ttl();
        }
        for _ in 0..150 {
            runner.step();
        }
        runner.compare_all();
        let stats = runner.store().stats();
        assert!(stats.summaries_used_total + stats.blocks_read_total > 0);
    }
}

// fault: Write or sync fails; Time series
#[test]
fn a_failing_disk_loses_nothing() {
    let mut crashes = 0;
    for seed in seeds(60) {
        let mut runner = Runner::new(seed + 1000);
        for _ in 0..120 {
            if runner.random.one_in(6) {
                let fault = [
                    DiskFault::PowerCut,
                    DiskFault::PowerCut,
                    DiskFault::Write,
                    DiskFault::Sync,
                ][runner.random.below(4)];
                let calls = runner.random.below(40) as u64;
                runner.disk.fail(fault, calls);
            }
            runner.step();
        }
        runner.compare_all();
        crashes += runner.crashes;
    }
    assert!(crashes > 60 || std::env::var("TIMESERIES_SEED").is_ok(), "{crashes}");
}

#[test]
fn same_seed_gives_the_same_operations() {
    let trace = |seed| {
        let mut runner = Runner::new(seed);
        (0..80).for_each(|_| runner.step());
        let names = runner.disk.file_names();
        let contents: Vec<Vec<u8>> = names.iter().map(|name| runner.disk.read_file(name)).collect();
        (names, contents, runner.disk.calls())
    };
    assert!(trace(5) == trace(5));
}

/// Runs writes, flushes, a merge and deletions. The power fails at each disk call in turn.
// fault: Process killed; Time series
#[test]
fn a_crash_at_every_call_loses_nothing() {
    for cut in 0.. {
        let mut runner = Runner::new(77);
        runner.disk.fail(DiskFault::PowerCut, cut);
        for _ in 0..60 {
            runner.step();
        }
        runner.compare_all();
        if runner.crashes == 0 {
            assert!(cut > 100, "{cut}");
            break;
        }
    }
}
