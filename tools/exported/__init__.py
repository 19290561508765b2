"""Programs of tools/check_exports.py: each opens an exported plan with the real package."""
