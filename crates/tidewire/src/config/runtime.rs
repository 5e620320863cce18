//! `runtime.toml` of the data directory: changes at run time. The file is replaced atomically, so a crash leaves the
//! old or the new one. A change of a part keeps the rest.

use std::fs;
use std::io;
use std::path::Path;

use super::key::OptionKey;
use super::raw::RUNTIME_FILE;

/// The file is durable when this returns. After an error, the previous file is in its place, or an empty one.
pub fn write(data_dir: &Path, document: &toml::Table) -> io::Result<()> {
    let path = data_dir.join(RUNTIME_FILE);
    let temporary = path.with_extension("toml.tmp");
    fs::write(&temporary, document.to_string())?;
    fs::File::open(&temporary)?.sync_all()?;
    let former = before(&path)?;
    let directory = fs::File::open(data_dir)?;
    fs::rename(&temporary, &path)?;
    directory.sync_all().inspect_err(|_| {
        // As far as it goes: the disk has just failed.
        let _ = put_back(&path, &temporary, former.as_deref());
    })
}

fn before(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Without a previous file, writes an empty one: `stores.json` may have recorded the new file, and the next start would
/// miss it.
fn put_back(path: &Path, temporary: &Path, former: Option<&[u8]>) -> io::Result<()> {
    fs::write(temporary, former.unwrap_or_default())?;
    fs::rename(temporary, path)
}

/// Tables on the way are made; fails where something else than a table stands in the way.
pub fn set(document: &mut toml::Table, key: &OptionKey, value: toml::Value) -> io::Result<()> {
    let Some((name, path)) = key.0.split_last() else {
        return Ok(());
    };
    let mut table = document;
    for word in path {
        let below = table.entry(word).or_insert_with(|| toml::Table::new().into());
        let is_in_the_way = || io::Error::other(format!("`{word}` is not a table"));
        table = below.as_table_mut().ok_or_else(is_in_the_way)?;
    }
    table.insert(name.clone(), value);
    Ok(())
}

/// With the tables that it leaves empty. False when it was not there.
pub fn remove(document: &mut toml::Table, words: &[String]) -> bool {
    match words {
        [] => false,
        [name] => document.remove(name).is_some(),
        [table, rest @ ..] => {
            let Some(below) = document.get_mut(table).and_then(toml::Value::as_table_mut) else {
                return false;
            };
            let is_removed = remove(below, rest);
            if below.is_empty() {
                document.remove(table);
            }
            is_removed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> OptionKey {
        OptionKey::parse(text).expect("a key")
    }

    #[test]
    fn undone_first_write_leaves_an_empty_file() {
        let directory = std::env::temp_dir().join(format!("tidewire-runtime-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a writable directory");
        let (path, temporary) = (directory.join(RUNTIME_FILE), directory.join("temporary"));
        for (former, expected) in [(None, ""), (Some(&b"[mqtt]\n"[..]), "[mqtt]\n")] {
            fs::write(&path, "[access]\n").expect("a writable file");
            put_back(&path, &temporary, former).expect("a writable directory");
            assert_eq!(fs::read_to_string(&path).expect("the file exists"), expected);
        }
        fs::remove_dir_all(&directory).expect("the directory can be removed");
    }

    #[test]
    fn a_key_is_set_and_removed_beside_others() {
        let mut document: toml::Table = "[mqtt]\nmax_qos = 1\n[access]\nrules = []\n".parse().expect("TOML");
        set(&mut document, &key("mqtt.max_inflight"), 5.into()).expect("set");
        set(
            &mut document,
            &key("listeners.tls.\"a.b\".min_tls_version"),
            "1.3".into(),
        )
        .expect("set");
        assert_eq!(document["mqtt"]["max_inflight"].as_integer(), Some(5));
        assert_eq!(
            document["listeners"]["tls"]["a.b"]["min_tls_version"].as_str(),
            Some("1.3")
        );
        assert!(remove(&mut document, &key("listeners.tls.\"a.b\".min_tls_version").0));
        assert!(!document.contains_key("listeners"));
        assert!(!remove(&mut document, &key("mqtt.max_qos.x").0) && !remove(&mut document, &key("sys.interval").0));
        assert!(remove(&mut document, &key("mqtt.max_qos").0));
        assert_eq!(document["mqtt"].as_table().map(toml::Table::len), Some(1));
        assert!(document["access"]["rules"].is_array());
        assert!(set(&mut document, &key("mqtt.max_inflight.x"), 5.into()).is_err());
    }
}
