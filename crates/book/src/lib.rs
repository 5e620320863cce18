//! The book (`docs/`) as the server serves it under `/docs`: pages, pictures, style sheet and search index.
//!
//! `build.rs` renders and compresses the files. `make docs` renders the same sources with mdBook, for a web site.

/// A file below `/docs/`.
#[derive(Debug)]
pub struct BookFile {
    /// Path without the leading `/docs/`, for example `get-started/first-message.html`.
    pub path: &'static str,
    pub content_type: &'static str,
    /// The content, compressed with gzip.
    pub gzip: &'static [u8],
}

/// All files, sorted by path.
pub static FILES: &[BookFile] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The page that `/docs` redirects to.
pub const FIRST_PAGE: &str = "introduction.html";

/// Returns the file at a path without the leading `/docs/`.
pub fn find(path: &str) -> Option<&'static BookFile> {
    let index = FILES.binary_search_by(|file| file.path.cmp(path)).ok()?;
    FILES.get(index)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Limit of the size of the book in the binary.
    const COMPRESSED_BYTES_MAX: usize = 1024 * 1024;

    fn text(path: &str) -> String {
        let file = find(path).unwrap_or_else(|| panic!("no {path}"));
        let mut text = String::new();
        flate2::read::GzDecoder::new(file.gzip)
            .read_to_string(&mut text)
            .unwrap();
        text
    }

    #[test]
    fn compressed_book_fits_its_limit() {
        let bytes: usize = FILES.iter().map(|file| file.gzip.len()).sum();
        assert!(bytes <= COMPRESSED_BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn first_page_has_contents_search_and_next_page() {
        let page = text(FIRST_PAGE);
        for part in [
            "<title>",
            r#"<nav id="contents""#,
            r#"type="search""#,
            r#"href="get-started/first-message.html""#,
            r#"rel="next""#,
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains(".md\""), "a link still names a source file");
    }

    #[test]
    fn page_in_a_folder_links_to_the_parent_folder() {
        let page = text("get-started/first-message.html");
        assert!(page.contains(r#"href="../book.css""#));
        assert!(page.contains(r#"href="../introduction.html""#));
        assert!(page.contains(r#"href="../contents.html""#));
        assert!(page.contains(r#"data-page="get-started/first-message.html""#));
    }

    #[test]
    fn contents_link_to_all_pages() {
        let contents = text("contents.html");
        let pages = FILES.iter().filter(|file| file.path.ends_with(".html"));
        for page in pages.filter(|page| page.path != "contents.html") {
            assert!(contents.contains(&format!("href=\"{}\"", page.path)), "{}", page.path);
        }
    }

    #[test]
    fn search_index_has_an_entry_per_section() {
        let index: serde_json::Value = serde_json::from_str(&text("search.json")).unwrap();
        let entries = index.as_array().unwrap();
        assert!(entries.len() > 50, "{}", entries.len());
        assert!(entries.iter().all(|entry| entry["page"].is_string()));
        assert!(
            entries
                .iter()
                .all(|entry| entry["path"].as_str().is_some_and(|path| path.contains(".html")))
        );
    }

    /// Returns the value of each `key: "value"` or `key="value"`.
    fn values<'a>(source: &'a str, key: &str) -> Vec<&'a str> {
        source
            .split(key)
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
            .collect()
    }

    fn check_link(link: &str, origin: &str) {
        let (page, anchor) = link.split_once('#').unwrap_or((link, ""));
        assert!(
            find(page).is_some(),
            "{origin}: {link}: docs/SUMMARY.md has no such page"
        );
        let id = format!(" id=\"{anchor}\"");
        assert!(
            anchor.is_empty() || text(page).contains(&id),
            "{origin}: {link}: the page has no such heading"
        );
    }

    #[test]
    fn pages_of_the_console_link_to_pages_of_the_book() {
        let pages = std::fs::read_to_string("../../ui/src/lib/pages.ts").unwrap();
        let links = values(&pages, "docs: \"");
        assert_eq!(links.len(), values(&pages, " path: \"").len());
        for link in links.into_iter().chain(values(&pages, "docsOfOne: \"")) {
            check_link(link, "pages.ts");
        }
        for route in files_below(Path::new("../../ui/src/routes")) {
            let name = route.file_name().unwrap().to_str().unwrap();
            let source = std::fs::read_to_string(&route).unwrap();
            let own = values(&source, "<Docs page=\"");
            // Wall screens have no links.
            let has_link = pages.contains(&format!("/{name}\"")) || !own.is_empty() || name == "Screen.svelte";
            assert!(has_link, "{name} has no link to the book");
            for link in own {
                check_link(link, name);
            }
        }
    }

    fn files_below(directory: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(directory)
            .unwrap()
            .flat_map(|entry| {
                let path = entry.unwrap().path();
                if path.is_dir() { files_below(&path) } else { vec![path] }
            })
            .collect()
    }

    #[test]
    fn unknown_path_is_not_found() {
        assert!(find("nothing.html").is_none());
    }
}
