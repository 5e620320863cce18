//! Revocation lists of `crl_file` that are in force, for the alarm and the metric of lists that expire. The server does
//! not renew these files, so the alarm begins before a list expires.

use std::fs;
use std::path::Path;

use api::{ManagedItem, ManagedKind};
use net::certificate::{RevocationListDescription, describe_list};
use net::tls::TlsFiles;

/// The alarm begins with the last tenth of the validity of a list, within these limits.
const NOTICE_MIN_S: i64 = 3600;
const NOTICE_MAX_S: i64 = 7 * 24 * 3600;

/// Reads the lists of a listener. Returns the one that expires first. `None`: no list of a file expires.
pub fn of_listener(files: &TlsFiles) -> Option<ManagedItem> {
    let path = files.revocation_lists.as_ref()?;
    // The listener has just read the file. If that has failed, the listener has reported it.
    let lists = net::tls::revocation_lists_of_file(path).ok()?;
    let downloaded = files.downloaded_lists.iter();
    let downloaded: Vec<_> = downloaded
        .filter_map(|file| describe_list(&fs::read(file).ok()?))
        .collect();
    first_to_expire(path, &lists, &downloaded)
}

/// Only the newest list of an authority counts.
fn first_to_expire(
    path: &Path,
    lists: &[RevocationListDescription],
    downloaded: &[RevocationListDescription],
) -> Option<ManagedItem> {
    let is_replaced = |list: &RevocationListDescription| {
        let is_newer = |other: &RevocationListDescription| {
            other.covers_the_same(list) && other.this_update_unix_s > list.this_update_unix_s
        };
        lists.iter().chain(downloaded).any(is_newer)
    };
    let in_force = lists.iter().filter(|list| !is_replaced(list));
    let ends = in_force.filter_map(|list| Some((list.next_update_unix_s?, list.this_update_unix_s)));
    let (end, begin) = ends.min()?;
    let notice_s = (end.saturating_sub(begin) / 10).clamp(NOTICE_MIN_S, NOTICE_MAX_S);
    Some(ManagedItem {
        kind: ManagedKind::RevocationFile,
        name: path.display().to_string(),
        expires_at_unix_s: Some(end),
        notice_at_unix_s: Some(end.saturating_sub(notice_s)),
        failures: 0,
        last_error: None,
    })
}

/// Returns each file once. Listeners can use different versions of a file; the one that expires first counts.
pub fn distinct(items: impl Iterator<Item = ManagedItem>) -> Vec<ManagedItem> {
    let mut distinct: Vec<ManagedItem> = Vec::new();
    for item in items {
        match distinct.iter_mut().find(|known| known.name == item.name) {
            Some(known) if item.expires_at_unix_s < known.expires_at_unix_s => *known = item,
            Some(_) => {}
            None => distinct.push(item),
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: i64 = 24 * 3600;

    fn list(issuer: &str, begin: i64, end: Option<i64>) -> RevocationListDescription {
        RevocationListDescription {
            issuer: issuer.to_owned(),
            scope: None,
            number: None,
            this_update_unix_s: begin,
            next_update_unix_s: end,
        }
    }

    fn times(lists: &[RevocationListDescription], downloaded: &[RevocationListDescription]) -> Option<(i64, i64)> {
        let item = first_to_expire(Path::new("ca.crl"), lists, downloaded)?;
        assert_eq!(item.name, "ca.crl");
        item.notice_at_unix_s.zip(item.expires_at_unix_s)
    }

    #[test]
    fn notice_begins_with_the_last_tenth() {
        for (validity_s, notice_s) in [
            (DAY_S / 24, 3600),
            (10 * DAY_S, DAY_S),
            (30 * DAY_S, 3 * DAY_S),
            (365 * DAY_S, 7 * DAY_S),
        ] {
            let end = 1000 + validity_s;
            assert_eq!(
                times(&[list("a", 1000, Some(end))], &[]),
                Some((end - notice_s, end)),
                "{validity_s}"
            );
        }
        assert_eq!(times(&[list("a", 1000, None)], &[]), None);
        assert_eq!(times(&[], &[]), None);
    }

    #[test]
    fn only_the_newest_list_of_an_authority_counts() {
        let (old, new) = (list("a", 0, Some(DAY_S)), list("a", DAY_S, Some(100 * DAY_S)));
        let other = list("b", 0, Some(50 * DAY_S));
        let end = |lists: &[_], downloaded: &[_]| times(lists, downloaded).map(|(_, end)| end);
        assert_eq!(end(&[old.clone(), new.clone()], &[]), Some(100 * DAY_S));
        assert_eq!(end(&[old.clone(), new.clone(), other.clone()], &[]), Some(50 * DAY_S));
        assert_eq!(end(std::slice::from_ref(&old), &[other]), Some(DAY_S));
        assert_eq!(end(&[old], &[new]), None);
    }

    #[test]
    fn listeners_share_the_item_of_a_file() {
        let item = |name: &str, end| first_to_expire(Path::new(name), &[list("a", 0, Some(end))], &[]);
        let items = [item("x", 20), item("y", 30), item("x", 10), item("x", 15)];
        let found: Vec<_> = distinct(items.into_iter().flatten())
            .into_iter()
            .map(|item| (item.name, item.expires_at_unix_s))
            .collect();
        assert_eq!(found, [("x".to_owned(), Some(10)), ("y".to_owned(), Some(30))]);
    }
}
