//! Configuration: options, their sources, and the effective values.
//!
//! Each option is defined once, in `options/`. Reading goes from `ConfigSources` to `RawConfig` (as typed, with
//! origins) to `Config` (as used). All errors are reported at once, each with its place. Precedence: defaults, defaults
//! of `node.profile`, file and `conf.d`, changes at run time, environment, `--set`.

pub mod address;
pub mod attribute_source;
pub mod declared;
pub mod files;
pub mod key;
pub mod mountpoint;
pub mod option;
pub mod options;
pub mod origin;
pub mod paths;
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

pub use origin::{ConfigDiagnostic, ValueOrigin, listed};
pub use raw::{ConfigSources, RUNTIME_FILE, RawConfig, RuntimeText, data_dir};
pub use resolve::{Config, EffectiveOption, Listener, ListenerTls};

/// A configuration without errors, and how it came about.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub config: Config,
    /// Every value in force, in the order of the reference.
    pub effective: Vec<EffectiveOption>,
    /// Connectors, actions, sources and rules that it defines.
    pub declared: integration::DeclaredDefinitions,
    /// The files that were read.
    pub files: Vec<PathBuf>,
}

/// Reads all layers and checks them, the files that they name included.
pub fn load(sources: &ConfigSources) -> Result<LoadedConfig, Vec<ConfigDiagnostic>> {
    let mut raw = RawConfig::read(sources);
    let (config, effective, resolve_diagnostics) = resolve::resolve(&mut raw, sources);
    let mut diagnostics = raw.diagnostics;
    diagnostics.extend(resolve_diagnostics);
    diagnostics.extend(files::check(&config, &effective));
    let (declared, found) = declared::read(&config, &effective);
    diagnostics.extend(found);
    diagnostics.sort_by(|a, b| a.origin.cmp(&b.origin));
    if diagnostics.is_empty() {
        Ok(LoadedConfig {
            config,
            effective,
            declared,
            files: raw.files,
        })
    } else {
        Err(diagnostics)
    }
}
