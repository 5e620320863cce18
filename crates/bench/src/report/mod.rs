//! All reports that are made from a [`crate::result::RunResult`] alone: tables, files, comparisons, thresholds.

mod chart;
pub mod compare;
pub mod csv;
pub mod html;
pub mod measure;
pub mod table;
#[cfg(test)]
mod tests;
pub mod threshold;
