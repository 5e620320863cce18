//! Runs the contract for the model of the tests and for the embedded store.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::{contract, model};
use timeseries::{ColumnStore, StoreConfig};

#[test]
fn naive_store_satisfies_the_contract() {
    contract::run_without_calendars(&|| Box::new(model::NaiveStore::default()));
}

#[test]
fn column_store_satisfies_the_contract() {
    contract::run(&|| {
        let config = StoreConfig::default();
        Box::new(ColumnStore::open(storage::model::ModelDisk::from_seed(1).storage(), config).unwrap())
    });
}
