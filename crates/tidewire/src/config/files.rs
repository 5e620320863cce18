//! Checks that the files which the configuration names can be read, so that `tidewire check` finds what a start would.

use std::fs::File;
use std::path::Path;

use super::origin::{Diagnostic, Origin};
use super::resolve::{Config, Effective};

pub fn check(config: &Config, effective: &[Effective]) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for (path, option) in named_files(config) {
        if let Err(error) = File::open(path) {
            let shown = path.display().to_string();
            let by = effective.iter().find(|value| {
                value.origin != Origin::Default && value.def.name == option && value.value.as_str() == Some(&shown)
            });
            let origin = by.map_or(Origin::Default, |value| value.origin.clone());
            let key = by.map(|value| value.key.to_string());
            let diagnostic = Diagnostic {
                origin,
                key,
                message: format!("cannot read {shown}: {error}"),
            };
            if !diagnostics.contains(&diagnostic) {
                diagnostics.push(diagnostic);
            }
        }
    }
    diagnostics
}

/// Files that must exist, each with the name of its option.
fn named_files(config: &Config) -> Vec<(&Path, &'static str)> {
    let mut files = Vec::new();
    for tls in config.listeners.iter().filter_map(|listener| listener.tls.as_ref()) {
        files.push((tls.cert_file.as_path(), "cert_file"));
        files.push((tls.key_file.as_path(), "key_file"));
        files.extend(tls.ca_file.as_deref().map(|path| (path, "ca_file")));
    }
    let optional = [
        (&config.api.cert_file, "cert_file"),
        (&config.api.key_file, "key_file"),
        (&config.api.users_file, "users_file"),
        (&config.access.password_file, "password_file"),
        (&config.access.acl_file, "acl_file"),
    ];
    files.extend(
        optional
            .into_iter()
            .filter_map(|(path, option)| Some((path.0.as_deref()?, option))),
    );
    files
}
