#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks a built site: its pages load nothing from another host, and the search finds words of a page and of a header.
# (mkdocs build --strict has checked links, headings and the navigation.)
# usage: check.sh SITE
set -eu
site=$1
loads='<(link|script|img|iframe|source)[^>]*(href|src)="?(https?:)?//[^" >]+|url\(["'"'"']?(https?:)?//|@import +["'"'"']?(https?:)?//'
if find "$site" \( -name '*.html' -o -name '*.css' \) -exec grep -oE "$loads" {} + | grep -v 'rel="\?canonical'; then
  echo 'these pages load something from another host'
  exit 1
fi
for words in 'Getting started' 'low-rank branch' 'class causal_lm'; do
  grep -qF "$words" "$site/search/search_index.json" || { echo "the search does not know '$words'" && exit 1; }
done
pages=$(find "$site" -name '*.html' | wc -l)
[ "$pages" -ge 250 ] || { echo "only $pages pages" && exit 1; }
echo "$pages pages"
