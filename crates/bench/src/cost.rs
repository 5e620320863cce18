//! Readers of the resources that the broker uses: from the kernel of this machine ([`process`]) or from the broker's
//! own metrics page ([`metrics`]).

pub mod metrics;
pub mod process;
