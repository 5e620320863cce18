//! A build without the device platform. Nothing creates a [`DevicePlatform`].

use std::net::TcpListener;
use std::sync::Arc;

use journal::LogState;
use web::admins::Admins;
use web::problem::HttpProblem;

/// Has no values.
#[derive(Clone)]
pub enum DevicePlatform {}

/// Result of a search for a dashboard.
#[allow(dead_code, reason = "the same type as in builds with the platform")]
pub enum DashboardLookup {
    Found(String),
    Missing,
    InvalidId,
}

impl DevicePlatform {
    pub(crate) fn listener(&self) -> Option<&TcpListener> {
        match *self {}
    }

    pub(crate) fn log_state(&self) -> LogState {
        match *self {}
    }

    pub(crate) fn failed_stores(&self) -> Vec<String> {
        match *self {}
    }

    pub(crate) fn tenants_over_script_budget(&self) -> Vec<String> {
        match *self {}
    }

    pub(crate) fn find_dashboard(&self, _: &str) -> Result<DashboardLookup, HttpProblem> {
        match *self {}
    }

    pub(crate) fn tokens_of_administrator(
        &self,
        _: &Admins,
        _: (&str, Arc<str>),
        _: i64,
    ) -> Result<(String, String), HttpProblem> {
        match *self {}
    }

    pub(crate) fn delete_api_keys_of(&self, _: &str) -> Result<(), String> {
        match *self {}
    }
}

pub fn may_wait(_: &str) -> bool {
    false
}

pub fn fixed_limits() -> Vec<(&'static str, u64, &'static str, &'static str)> {
    Vec::new()
}
