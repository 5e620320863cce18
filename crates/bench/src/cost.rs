//! What the broker under load uses, and who says so: the kernel of this machine ([`process`]), or the broker's own metrics ([`metrics`]).

pub mod metrics;
pub mod process;
