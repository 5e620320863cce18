//! Configuration: what can be set, where it is read from, and what is in force.
//!
//! Each option is written down once, in `options/`. Reading goes `Sources` → `RawConfig` (as typed, with origins) →
//! `Config` (as used). Everything that is wrong is reported at once, with the place where it was typed.
//! Precedence: defaults < those of `node.profile` < file and `conf.d` < changes made at run time < environment < `--set`.

pub mod address;
pub mod declared;
pub mod files;
pub mod key;
pub mod option;
pub mod options;
pub mod origin;
pub mod raw;
pub mod reference;
pub mod resolve;
pub mod rules;
pub mod runtime;
pub mod schema;
pub mod show;
pub mod units;
pub mod value;

use std::path::PathBuf;

pub use origin::{Diagnostic, Origin};
pub use raw::{RUNTIME_FILE, RawConfig, Sources, data_dir};
pub use resolve::{Config, Effective, Listener, ListenerTls};

/// A configuration without errors, and how it came about.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    /// Every value in force, in the order of the reference.
    pub effective: Vec<Effective>,
    /// Connectors, actions, sources and rules that it defines.
    pub declared: integration::Declared,
    /// The files that were read.
    pub files: Vec<PathBuf>,
}

/// Reads all layers and checks them, the files that they name included.
pub fn load(sources: &Sources) -> Result<Loaded, Vec<Diagnostic>> {
    let mut raw = RawConfig::read(sources);
    let (config, effective, resolve_diagnostics) = resolve::resolve(&mut raw, sources);
    let mut diagnostics = raw.diagnostics;
    diagnostics.extend(resolve_diagnostics);
    diagnostics.extend(files::check(&config, &effective));
    let (declared, found) = declared::read(&config, &effective);
    diagnostics.extend(found);
    diagnostics.sort_by(|a, b| a.origin.cmp(&b.origin));
    if diagnostics.is_empty() {
        Ok(Loaded {
            config,
            effective,
            declared,
            files: raw.files,
        })
    } else {
        Err(diagnostics)
    }
}
