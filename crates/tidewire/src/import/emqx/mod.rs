//! `tidewire import emqx`: imports a backup archive of EMQX 5 or 6, as `emqx ctl data export` and the dashboard write
//! it.
//!
//! | part of the archive | becomes |
//! |---|---|
//! | `META.hocon` | checked: version 5 or 6 |
//! | `cluster.hocon` | options, listeners, access rules, connectors, actions, sources, rules |
//! | `mnesia/emqx_authn_mnesia`, `emqx_authn_scram_mnesia` | users |
//! | `mnesia/emqx_acl` | access rules |
//! | `mnesia/emqx_banned`, `emqx_banned_rules` | bans |
//! | `mnesia/emqx_retainer_message` | retained messages |

mod access;
mod acl_file;
mod archive;
mod draft;
mod integration;
mod ocsp;
mod options;
mod pattern;
mod pem;
mod providers;
mod scram;
mod state;
mod term;
mod unreadable;
mod users;

use std::collections::BTreeMap;
use std::path::Path;

use archive::Archive;
use term::{Table, TermBudget};

use super::hocon::Hocon;
use super::report::{Outcome, Report, printable};
use super::settings::Setting;
use super::setup::Setup;
use crate::journal_command::summary::count;

/// Maximum size of the compressed archive.
const ARCHIVE_BYTES_MAX: u64 = 512 << 20;
const CONFIG: &str = "cluster.hocon";
const META: &str = "META.hocon";
/// Group of the users of all listeners in the tables.
const ALL_LISTENERS: &str = "mqtt:global";
/// Directory of the tables.
const TABLES: &str = "mnesia/";

/// Tables that tidewire does not import, and what to do instead.
const OTHER_TABLES: [(&str, &str); 4] = [
    (
        "emqx_admin",
        "users of the dashboard: create administrators with tidewire passwd",
    ),
    ("emqx_app", "API keys: create them in the console"),
    ("emqx_psk", "tidewire does not support TLS with pre-shared keys"),
    ("emqx_retainer_index_meta", "tidewire has an index of its own"),
];

const READ_TABLES: [&str; 7] = [
    "emqx_authn_mnesia",
    scram::TABLES[0],
    scram::TABLES[1],
    "emqx_acl",
    "emqx_banned",
    "emqx_banned_rules",
    "emqx_retainer_message",
];

/// Access rules of namespaces. They are not imported, but can deny access.
const NAMESPACE_RULES: &str = "emqx_acl_ns";

/// The remedy for a table that cannot be read.
const WAY_OUT: &str = "copy its contents with EMQX's REST API";

pub fn import(file: &Path, report: &Report) -> Result<Setup, String> {
    let in_file = |problem: String| format!("{}: {}", file.display(), printable(&problem));
    let bytes = super::read_bounded(file, ARCHIVE_BYTES_MAX)?;
    let archive = Archive::read(&bytes).map_err(in_file)?;
    drop(bytes);
    let mut setup = Setup::new()?;
    convert(archive, &mut setup, report).map_err(in_file)?;
    Ok(setup)
}

fn convert(archive: Archive, setup: &mut Setup, report: &Report) -> Result<(), String> {
    let version = version(&archive, report)?;
    let text = archive.text(CONFIG)?;
    let no_include = |_: &str| Err("an archive of EMQX includes no files".to_owned());
    let hocon = Hocon::parse(CONFIG, text, &no_include).map_err(|error| error.to_string())?;
    let root = Setting::root(&hocon, report);
    let tables = read_tables(archive, report)?;
    options::import(&root, setup);
    let listeners = root.get("listeners");
    let authentication = users::Authentication {
        authenticators: root.get("authentication"),
        is_by_listener: options::have_authenticators(&listeners),
    };
    let users = users::UserTables {
        passwords: tables.get("emqx_authn_mnesia"),
        scram: scram::TABLES.iter().find_map(|name| tables.get(name)),
    };
    // Before those of listeners, which can only use the same providers.
    let mut providers = providers::Providers::new(version);
    let closed_by = options::closed_by(&root);
    if let Some(because) = &closed_by {
        providers.close(because);
    }
    authentication.import(&users, &mut providers, setup, report);
    options::listeners(&listeners, &mut providers, setup);
    let no_match = if version < 6 { "allow" } else { "deny" };
    let closed_by = closed_by.or(providers.rules_closed_by.take());
    let database = access::Database {
        rules: tables.get("emqx_acl"),
        has_namespaces: tables.contains_key(NAMESPACE_RULES),
    };
    let mut authorization = access::Authorization::new(setup, report, no_match, closed_by);
    authorization.has_token_names = providers.has_token_names;
    authorization.import(&root.get("authorization"), &database);
    integration::import(&root, setup);
    state::bans(&tables, setup, report)?;
    state::retained(&tables, setup, report);
    root.finish();
    Ok(())
}

/// Returns the major version of EMQX.
fn version(archive: &Archive, report: &Report) -> Result<u32, String> {
    let text = archive.text(META)?;
    let meta = Hocon::parse(META, text, &|_| Err("no includes".to_owned())).map_err(|error| error.to_string())?;
    let root = Setting::root(&meta, report);
    let version = root.get("version");
    let major = version
        .text()
        .and_then(|text| text.split('.').next()?.parse::<u32>().ok());
    match major {
        Some(major @ (5 | 6)) => {
            version.imported("checked");
            root.get("edition").imported("checked");
            root.finish();
            Ok(major)
        }
        Some(major) => Err(format!("the archive is of EMQX {major}; supported are EMQX 5 and 6")),
        None => Err(format!("{META} names no version of EMQX")),
    }
}

/// Reads the tables that are imported and reports the other files. The imported tables come first, so that others do
/// not use up the budget. Each file is dropped when it is decoded.
fn read_tables(archive: Archive, report: &Report) -> Result<BTreeMap<&'static str, Table>, String> {
    let mut tables = BTreeMap::new();
    let mut budget = TermBudget::default();
    let read_table = |path: &str| {
        READ_TABLES
            .into_iter()
            .find(|read| path.strip_prefix(TABLES) == Some(*read))
    };
    let (first, then): (Vec<_>, Vec<_>) = archive
        .files
        .into_iter()
        .partition(|(path, _)| read_table(path).is_some());
    for (path, bytes) in first.into_iter().chain(then) {
        let refuse = |item: &str, because: String| report.add(&path, 0, item, Outcome::NotSupported { because });
        if path == CONFIG || path == META {
            continue;
        }
        let Some(name) = path.strip_prefix(TABLES) else {
            refuse("the file", "it is not part of an archive of EMQX 5".to_owned());
            continue;
        };
        let table = match Table::read(name, &bytes, &mut budget) {
            Ok(table) => table,
            // Without it, clients could do more than in EMQX.
            Err(problem) if state::BANS.contains(&name) || name == NAMESPACE_RULES => {
                return Err(format!(
                    "{path} cannot be read: {problem}; export again, or delete its contents in EMQX before"
                ));
            }
            Err(problem) => {
                refuse("the table", format!("it cannot be read: {problem}; {WAY_OUT}"));
                continue;
            }
        };
        drop(bytes);
        let other = OTHER_TABLES.iter().find(|(other, _)| *other == name);
        match (read_table(&path), other) {
            _ if table.len() == 0 => {
                let nothing = "nothing: it is empty".to_owned();
                report.add(&path, 0, "the table", Outcome::Imported(nothing));
            }
            (Some(_), _) => {}
            (None, Some((_, because))) => refuse(&count(table.len(), "row"), (*because).to_owned()),
            (None, None) if name.ends_with("_ns") => {
                let because = "namespaces are not imported".to_owned();
                refuse(&count(table.len(), "row"), because);
            }
            (None, None) => {
                let because = "tidewire does not know this table".to_owned();
                refuse(&count(table.len(), "row"), because);
            }
        }
        if let Some(read) = read_table(&path) {
            tables.insert(read, table);
        } else if name == NAMESPACE_RULES && table.len() > 0 {
            tables.insert(NAMESPACE_RULES, table);
        }
    }
    Ok(tables)
}
