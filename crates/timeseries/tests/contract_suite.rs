//! The contract, for the model of the tests and for the embedded store.

#![allow(clippy::unwrap_used, reason = "tests")]

mod contract;
mod model;

use timeseries::{ColumnStore, Config};

#[test]
fn the_naive_store_keeps_the_contract() {
    contract::run_without_calendars(&|| Box::new(model::NaiveStore::default()));
}

#[test]
fn the_column_store_keeps_the_contract() {
    contract::run(&|| {
        let config = Config::default();
        Box::new(ColumnStore::open(storage::model::ModelDisk::from_seed(1).storage(), config).unwrap())
    });
}
